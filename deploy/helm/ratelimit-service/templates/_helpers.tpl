{{- define "ratelimit.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- define "ratelimit.selector" -}}
app.kubernetes.io/name: ratelimit-service
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "ratelimit.labels" -}}
{{ include "ratelimit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "ratelimit.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}
{{- define "ratelimit.ring" -}}
{{- $name := printf "%s-redis" (include "ratelimit.name" .) -}}
{{- $hosts := list -}}
{{- range $shard := until (int .Values.redis.shards) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s:6379" $name $shard $name) -}}
{{- end -}}
redis+ring://{{ join "," $hosts }}/0
{{- end }}
{{- define "ratelimit.podSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}
{{- define "ratelimit.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "ratelimit.name" .) "" .Values.serviceAccount.create) }}
{{- end }}
{{- define "ratelimit.clients" -}}
{{ .Values.networkPolicy.clients | default (dict "ratelimit-client" "true") | toJson }}
{{- end }}
