{{/* Name of every object. */}}
{{- define "simgrad.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects our pods. The name is fixed: it becomes the job that the rules speak of. */}}
{{- define "simgrad.selector" -}}
app.kubernetes.io/name: simgrad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "simgrad.labels" -}}
{{ include "simgrad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "simgrad.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{- $variant := ternary "cpu" "cuda" (eq .Values.device "cpu") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion $variant) }}
{{- end -}}
{{- end -}}

{{/* Kubernetes' probes speak no TLS: with TLS they go to the health port. */}}
{{- define "simgrad.probePort" -}}
{{ ternary 8003 8001 .Values.tls.enabled }}
{{- end -}}

{{/* The flags that the chart gives the server. */}}
{{- define "simgrad.flags" -}}
- --address=0.0.0.0
- --port=8001
- --metrics_port=8002
- --device={{ .Values.device }}
- --drain_timeout={{ .Values.server.drainTimeoutSeconds }}s
- --queue_capacity={{ .Values.server.queueCapacity | int64 }}
- --max_message_bytes={{ .Values.server.maxMessageBytes | int64 }}
- --reflection={{ .Values.server.reflection }}
- --kernel_cache=/var/cache/simgrad
{{- if ne .Values.device "cpu" }}
- --warm={{ .Values.server.warm }}
{{- end }}
{{- if .Values.tls.enabled }}
- --tls_certificate=/etc/simgrad/tls/tls.crt
- --tls_key=/etc/simgrad/tls/tls.key
{{- if .Values.tls.mutual }}
- --tls_client_ca=/etc/simgrad/tls/ca.crt
{{- end }}
- --health_port=8003
# Prometheus scrapes plaintext; the NetworkPolicy says who may.
- --allow_insecure_metrics=true
{{- else }}
- --allow_insecure=true
{{- end }}
{{- if .Values.tokens.secretName }}
- --token_file=/etc/simgrad/tokens/tokens
{{- end }}
{{- end -}}
