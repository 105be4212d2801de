{{- define "lengnuan.volume" -}}
{{- if eq .Values.bundle.from "pvc" -}}
persistentVolumeClaim:
  claimName: {{ .Values.bundle.claim }}
  readOnly: true
{{- else if eq .Values.bundle.from "image" -}}
image:
  reference: {{ .Values.bundle.image }}
  pullPolicy: IfNotPresent
{{- else if eq .Values.bundle.from "s3" -}}
emptyDir:
  sizeLimit: 2Gi
{{- else if eq .Values.bundle.from "store" -}}
{{- if hasPrefix "s3://" .Values.store.at -}}
{{- fail "the service reads a store from a volume: with store.at in S3, bundle.from can't be store (docs/deploy.md)" -}}
{{- end -}}
persistentVolumeClaim:
  claimName: {{ .Values.store.claim }}
  readOnly: true
{{- else -}}
{{- fail "bundle.from is one of embedded, pvc, image, s3, store" -}}
{{- end -}}
{{- end }}
{{- define "lengnuan.fetch" -}}
- name: fetch-bundle
  image: {{ .Values.image.repository }}:{{ .Values.image.tag }}
  imagePullPolicy: IfNotPresent
  command: [python3, /fetch/fetch_bundle.py, /bundle]
  env:
    {{- range list "BUNDLE_URL" "BUNDLE_SHA256" }}
    - name: {{ . }}
      valueFrom:
        configMapKeyRef:
          name: {{ $.Release.Name }}-fetch
          key: {{ . }}
    {{- end }}
  envFrom:
    - secretRef:
        name: {{ .Values.bundle.secret }}
        optional: true
  volumeMounts:
    - name: bundle
      mountPath: /bundle
    - name: fetch
      mountPath: /fetch
      readOnly: true
  resources:
    requests:
      cpu: 100m
      memory: 64Mi
    limits:
      cpu: "1"
      memory: 256Mi
  securityContext:
    {{- include "lengnuan.closed" . | nindent 4 }}
{{- end }}
