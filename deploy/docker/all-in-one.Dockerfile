# The whole service in one container on port 8000, without a key and without a network at run time: broker, front door, worker.
#   docker build -f deploy/docker/all-in-one.Dockerfile -t sluice .
#   docker run --rm -v sluice:/data --stop-timeout 90 -p 127.0.0.1:8000:8000 sluice
# The queue lies in the volume and outlives the container; a stop may take DRAIN_S and what comes after it.
# Another model:  --build-arg MODEL_ID=org/name   (--build-arg MODEL_HUB=modelscope)
# On a GPU:       --build-arg WORKER_SET=worker-cuda, and `docker run --gpus 1`
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# libnuma: vLLM's CPU build is linked against it. The compiler: Triton's launchers, on a GPU. jemalloc: the broker's allocator.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libjemalloc2 libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home sluice
WORKDIR /app

COPY requirements/*.txt requirements/
ARG WORKER_SET=worker-cpu
RUN for set in "${WORKER_SET}" api cli; do \
        pip install --no-cache-dir --no-deps -r "requirements/${set}.txt" || exit 1; \
    done
# The CUDA lock names its own torch; the others leave it out, since it comes from PyTorch's index of CPU builds.
ARG TORCH=torch==2.13.0
RUN if [ "${WORKER_SET}" != worker-cuda ]; then \
        pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "${TORCH}"; \
    fi

COPY LICENSE .env.example ./
COPY deploy/docker/probe.py deploy/docker/
COPY shared shared
COPY worker worker
COPY api api
COPY cli cli
RUN install --directory --owner=sluice model /data

USER sluice
# Last, since it is what differs from image to image: the model is fetched, or the demo model is made ready.
ARG MODEL_ID=
ARG MODEL_HUB=huggingface
ARG MODEL_REVISION=
ENV MODEL_ID=${MODEL_ID}
RUN python -m cli pull

# From here on no hub is asked. Anybody who reaches the port may ask questions: publish it with care.
ENV HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HOST=0.0.0.0 \
    PORT=8000 \
    ALLOW_ANONYMOUS=1 \
    DATA_DIR=/data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "deploy/docker/probe.py", "8000", "/livez"]
CMD ["python", "-m", "cli", "up"]
