{{/* Name of every object. */}}
{{- define "simgrad.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Whether the metrics have a Service of their own: that of the calls can be reached from outside of the cluster. */}}
{{- define "simgrad.hasMetricsService" -}}
{{- if has .Values.service.type (list "NodePort" "LoadBalancer") }}true{{ end -}}
{{- end -}}

{{- define "simgrad.metricsService" -}}
{{- if include "simgrad.hasMetricsService" . -}}
{{- printf "%s-metrics" (include "simgrad.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- else -}}
{{- include "simgrad.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* What selects our pods. The name is fixed: it becomes the job that the rules speak of. */}}
{{- define "simgrad.selector" -}}
app.kubernetes.io/name: simgrad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of every object but the pods: a pod whose labels name a version is replaced when nothing in it changed. */}}
{{- define "simgrad.labels" -}}
{{ include "simgrad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of an object: its own, and those of all. Call with (dict "all" $ "own" ...). */}}
{{- define "simgrad.labelsWith" -}}
{{ toYaml (merge (deepCopy (.own | default dict)) (fromYaml (include "simgrad.labels" .all))) }}
{{- end -}}

{{/* Annotations of an object: those of all, and its own. Call with (dict "all" $ "own" ...). */}}
{{- define "simgrad.annotations" -}}
{{- $annotations := merge (deepCopy (.own | default dict)) .all.Values.commonAnnotations -}}
{{- with $annotations }}
{{- "annotations:" | nindent 2 }}
{{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "simgrad.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "simgrad.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* Bytes of a quantity of memory as Kubernetes writes it. Call with (dict "of" ... "field" ... "or" ...). */}}
{{- define "simgrad.bytes" -}}
{{- if kindIs "string" .of -}}
{{- if not (regexMatch "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" .of) }}
{{- fail (printf "%s: %s: write a whole number with Ki, Mi, Gi, Ti, k, M, G, T or nothing%s" .field .of (.or | default "")) }}
{{- end -}}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- mul (regexFind "^[0-9]+" .of | int64) (get $factors (regexFind "[A-Za-z]*$" .of) | default 1) -}}
{{- else -}}
{{- int64 .of -}}
{{- end -}}
{{- end -}}

{{/* On a GPU the server sees the GPU's memory and not the pod's, where work spills to. */}}
{{- define "simgrad.memoryBudget" -}}
{{- $limit := (.Values.resources.limits | default dict).memory -}}
{{- if .Values.server.memoryBudget -}}
{{- if lt (.Values.server.memoryBudget | int64) 16777216 -}}
{{- fail "server.memoryBudget: at least 16777216 (16 MiB), or the server does not start" -}}
{{- end -}}
{{- .Values.server.memoryBudget | int64 -}}
{{- else if and $limit (ne .Values.device "cpu") -}}
{{- $budget := div (mul (include "simgrad.bytes" (dict "of" $limit "field" "resources.limits.memory" "or" ", or set server.memoryBudget")) 3) 4 -}}
{{- if lt $budget 16777216 -}}
{{- fail (printf "resources.limits.memory: %v: at least 22Mi, or set server.memoryBudget: of this limit the server takes three quarters, and does not start with less than 16 MiB" $limit) -}}
{{- end -}}
{{- $budget -}}
{{- end -}}
{{- end -}}

{{/* The server's most is a day. */}}
{{- define "simgrad.connectionAge" -}}
{{- $age := .Values.server.maxConnectionAge -}}
{{- $number := regexFind "^[0-9]+" $age -}}
{{- $seconds := mul (int64 $number) (get (dict "s" 1 "m" 60 "h" 3600) (regexFind "[smh]$" $age) | default 1) -}}
{{- if or (gt (len $number) 5) (gt $seconds 86400) -}}
{{- fail (printf "server.maxConnectionAge: %s: at most 24h, or 0 for never" $age) -}}
{{- end -}}
{{- $age -}}
{{- end -}}

{{- define "simgrad.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{- $variant := ternary "cpu" "cuda" (eq .Values.device "cpu") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion $variant) }}
{{- end -}}
{{- end -}}

{{/* Kubernetes' probes speak no TLS, and a server whose connections are all taken is healthy: they have a port of their own. */}}
{{- define "simgrad.probePort" -}}
8003
{{- end -}}

{{/* The flags that the chart gives the server. */}}
{{- define "simgrad.flags" -}}
- "--address={{ .Values.server.address }}"
- --port=8001
- --metrics_port=8002
- --health_port={{ include "simgrad.probePort" . }}
- --device={{ .Values.device }}
- --drain_timeout={{ .Values.server.drainTimeoutSeconds }}s
- --queue_capacity={{ .Values.server.queueCapacity | int64 }}
- --max_message_bytes={{ .Values.server.maxMessageBytes | int64 }}
{{- with include "simgrad.memoryBudget" . }}
- --memory_limit_bytes={{ . }}
{{- end }}
- --max_connection_age={{ include "simgrad.connectionAge" . }}
- --reflection={{ .Values.server.reflection }}
- --kernel_cache=/var/cache/simgrad
{{- if ne .Values.device "cpu" }}
- --warm={{ .Values.server.warm }}
{{- end }}
{{- if .Values.tls.enabled }}
- --tls_certificate=/etc/simgrad/tls/tls.crt
- --tls_key=/etc/simgrad/tls/tls.key
{{- if .Values.tls.mutual }}
- --tls_client_ca=/etc/simgrad/{{ ternary "client-ca" "tls" (ne .Values.tls.clientCaSecretName "") }}/ca.crt
{{- end }}
# Prometheus scrapes plaintext; the NetworkPolicy says who may.
- --allow_insecure_metrics=true
{{- else }}
- --allow_insecure=true
{{- end }}
{{- if .Values.tokens.secretName }}
- --token_file=/etc/simgrad/tokens/tokens
{{- end }}
{{- with .Values.tracing.endpoint }}
- "--otlp_endpoint={{ . }}"
{{- end }}
{{- if .Values.tracing.caSecretName }}
{{- $_ := required "tracing.endpoint: the collector that has a certificate of tracing.caSecretName" .Values.tracing.endpoint }}
- --otlp_ca=/etc/simgrad/collector-ca/ca.crt
{{- end }}
{{- end -}}
