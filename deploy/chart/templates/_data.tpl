{{- define "lengnuan.data.env" -}}
- name: LENGNUAN_DATA
  valueFrom:
    configMapKeyRef:
      name: {{ .Release.Name }}-retrain
      key: LENGNUAN_DATA
{{- end }}
{{- define "lengnuan.data.mount" -}}
{{- if not (hasPrefix "s3://" .Values.retrain.data) -}}
- name: data
  mountPath: {{ .Values.retrain.data }}
  readOnly: true
{{- end }}
{{- end }}
{{- define "lengnuan.data.volume" -}}
{{- if not (hasPrefix "s3://" .Values.retrain.data) -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Release.Name }}-data
    readOnly: true
{{- end }}
{{- end }}
