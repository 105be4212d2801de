# The serving image: no torch, no compiler, no shell script. Build arguments:
#   BASE     an image with Python 3.11 or newer and its venv module; for RUNTIME=gpu one that also has the CUDA and
#            cuDNN libraries that the onnxruntime-gpu release in constraints.txt asks for
#   RUNTIME  cpu, or gpu
# It starts without a network, as uid 10001, on a read-only root, with the embedded bundle. To serve another one, mount
# it and set LENGNUAN_BUNDLE.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG RUNTIME=cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY model model
COPY training training
COPY service service
RUN python3 -m venv /opt/lengnuan \
    && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt '.[serve]'
# Both packages install the same folder `onnxruntime`, so one has to go before the other comes.
RUN case "${RUNTIME}" in \
      cpu) ;; \
      gpu) /opt/lengnuan/bin/pip uninstall --yes onnxruntime \
           && /opt/lengnuan/bin/pip install --no-cache-dir -c constraints.txt onnxruntime-gpu ;; \
      *) echo "RUNTIME must be cpu or gpu, not ${RUNTIME}" >&2; exit 1 ;; \
    esac \
    && /opt/lengnuan/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lengnuan" \
      org.opencontainers.image.description="Chinese text classification over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/lengnuan /opt/lengnuan
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
