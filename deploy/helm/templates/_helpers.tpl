{{- define "quintet.name" -}}
{{- if contains "quintet" .Release.Name }}{{ .Release.Name | trunc 50 }}{{ else }}{{ printf "%s-quintet" (.Release.Name | trunc 42) }}{{ end }}
{{- end }}

{{- define "quintet.selector" -}}
app.kubernetes.io/name: quintet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quintet.labels" -}}
{{ include "quintet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "quintet.secret" -}}
{{ .Values.credentials.existingSecret | default (printf "%s-users" (include "quintet.name" .)) }}
{{- end }}

{{- define "quintet.config" -}}
data = "/var/lib/quintet"
{{- if and (not .Values.tls.existingSecret) (not .Values.tls.insecure) }}
{{- fail "give tls.existingSecret, or tls.insecure=true if everybody in the cluster may listen" }}
{{- end }}
{{- range $name, $door := .Values.doors }}

[listeners.{{ $name }}]
enabled = {{ $door.enabled }}
{{- if $door.enabled }}
host = "0.0.0.0"
port = {{ $door.port }}
{{- if $.Values.tls.existingSecret }}
tls_cert = "/run/tls/tls.crt"
tls_key = "/run/tls/tls.key"
{{- else if ne $name "felix" }}
insecure = true
{{- else }}
certificate_names = ["{{ include "quintet.name" $ }}", "{{ include "quintet.name" $ }}.{{ $.Release.Namespace }}.svc", "localhost", "127.0.0.1"]
{{- end }}
{{- end }}
{{- end }}

[listeners.admin]
port = {{ .Values.metrics.port }}
{{- if .Values.metrics.enabled }}
host = "0.0.0.0"
insecure = true
{{- end }}
{{- range .Values.users }}

[[users]]
name = {{ .name | quote }}
password_file = "$CREDENTIALS_DIRECTORY/{{ .name }}"
roles = {{ .roles | toJson }}
{{- end }}
{{- with .Values.config }}

{{ . }}
{{- end }}
{{- end }}
