{{- define "lengnuan.store.env" -}}
- name: LENGNUAN_STORE
  valueFrom:
    configMapKeyRef:
      name: {{ .Release.Name }}-retrain
      key: LENGNUAN_STORE
- name: HOME
  value: /tmp
{{- end }}
{{- define "lengnuan.store.secret" -}}
envFrom:
  - secretRef:
      name: {{ .Values.store.secret }}
{{- end }}
{{- define "lengnuan.store.mount" -}}
{{- if not (hasPrefix "s3://" .Values.store.at) -}}
- name: store
  mountPath: {{ .Values.store.at }}
{{- end }}
{{- end }}
{{- define "lengnuan.store.volume" -}}
{{- if not (hasPrefix "s3://" .Values.store.at) -}}
- name: store
  persistentVolumeClaim:
    claimName: {{ .Values.store.claim }}
{{- end }}
{{- end }}
