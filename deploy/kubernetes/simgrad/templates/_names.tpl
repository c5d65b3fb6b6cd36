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
