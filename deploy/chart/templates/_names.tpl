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
{{- define "lengnuan.egress" -}}
policyTypes: [Egress]
egress:
  - to:
      - namespaceSelector:
          matchLabels:
            kubernetes.io/metadata.name: kube-system
    ports:
      - port: 53
        protocol: UDP
      - port: 53
        protocol: TCP
  - to:
      - ipBlock:
          cidr: 0.0.0.0/0
    ports:
      - port: 443
        protocol: TCP
{{- end }}
