{{- define "lengnuan.meta" -}}
namespace: {{ .Release.Namespace }}
labels:
  app.kubernetes.io/name: lengnuan
  app.kubernetes.io/component: serve
{{- end }}
{{- define "lengnuan.selector" -}}
app.kubernetes.io/name: lengnuan
app.kubernetes.io/component: serve
{{- end }}
{{- define "lengnuan.closed" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
{{- define "lengnuan.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}
