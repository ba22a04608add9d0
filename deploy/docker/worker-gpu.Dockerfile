# A worker with vLLM for NVIDIA GPUs. The host needs the driver and NVIDIA's container toolkit.
#   docker build -f deploy/docker/worker-gpu.Dockerfile -t sluice-worker-gpu .
#   docker run --gpus 1 --stop-timeout 60 -e REDIS_URL=… sluice-worker-gpu
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# Triton compiles small launchers while it runs, so a C compiler stays in the image.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home sluice
WORKDIR /app

# CUDA's libraries come as packages of this lock; the driver comes from the host.
COPY requirements/worker-cuda.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/worker-cuda.txt

COPY LICENSE .env.example ./
COPY deploy/docker/probe.py deploy/docker/
COPY shared shared
COPY worker worker
RUN install --directory --owner=sluice model

USER sluice
# The demo model is made ready here, so that a container without MODEL_ID needs no network.
RUN python -m worker.model

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    WORKER_HOST=0.0.0.0 \
    WORKER_PORT=9100
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m CMD ["python", "deploy/docker/probe.py", "9100", "/livez"]
# As `make up` does it: the hubs are open to what looks for the model, and closed to the worker.
CMD ["sh", "-c", "MODEL_DIR=$(python -m worker.model) && export MODEL_DIR && exec python -m worker"]
