# Three images: serve-cpu (the last, so the default), serve-gpu and train: `docker build --target NAME .`
#
#   BASE      an image with Python 3.11 or newer and its venv module
#   GPU_BASE  for serve-gpu: one that also has the CUDA and cuDNN libraries that the onnxruntime-gpu release in
#             constraints.txt asks for
#
# The serving images hold no torch, no compiler and no pip. All start without a network, as uid 10001, on a read-only
# root; the serving ones with the embedded bundle: to serve another one, mount it and set LENGNUAN_BUNDLE. What an image
# holds is listed in /opt/lengnuan/sbom.json (CycloneDX).
ARG BASE=python:3.11-slim
ARG GPU_BASE=${BASE}

FROM ${BASE} AS source
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY model model
COPY training training
COPY service service
COPY deploy/slim.sh deploy/slim.sh

FROM source AS build-cpu
RUN python3 -m venv /opt/lengnuan \
    && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt '.[serve,tracing]' \
    && sh deploy/slim.sh

FROM ${GPU_BASE} AS build-gpu
COPY --from=source /src /src
WORKDIR /src
# Both packages install the same folder `onnxruntime`, so one has to go before the other comes.
RUN python3 -m venv /opt/lengnuan \
    && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt '.[serve,tracing]' \
    && /opt/lengnuan/bin/pip uninstall --yes onnxruntime \
    && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt onnxruntime-gpu \
    && sh deploy/slim.sh

FROM source AS build-train
RUN python3 -m venv /opt/lengnuan \
    && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt '.[train,s3]' \
    && sh deploy/slim.sh

FROM ${BASE} AS train
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lengnuan-train" \
      org.opencontainers.image.description="Chinese text classification: from labelled rows to a bundle" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-train /opt/lengnuan /opt/lengnuan
ENV PATH=/opt/lengnuan/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp
USER 10001:10001
STOPSIGNAL SIGTERM
# A job has no health but its exit code.
HEALTHCHECK NONE
ENTRYPOINT ["lengnuan-train"]

FROM ${GPU_BASE} AS serve-gpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lengnuan-gpu" \
      org.opencontainers.image.description="Chinese text classification over HTTP, on CUDA" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-gpu /opt/lengnuan /opt/lengnuan
ENV PATH=/opt/lengnuan/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LENGNUAN_DEVICE=cuda \
    LENGNUAN_HOST=0.0.0.0 \
    LENGNUAN_PORT=8000
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"LENGNUAN_PORT\"]}/readyz', timeout=2)"]
ENTRYPOINT ["lengnuan-serve"]

FROM ${BASE} AS serve-cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lengnuan" \
      org.opencontainers.image.description="Chinese text classification over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-cpu /opt/lengnuan /opt/lengnuan
ENV PATH=/opt/lengnuan/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LENGNUAN_HOST=0.0.0.0 \
    LENGNUAN_PORT=8000
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"LENGNUAN_PORT\"]}/readyz', timeout=2)"]
ENTRYPOINT ["lengnuan-serve"]
