# The front door: no torch, no engine.   docker build -f deploy/docker/api.Dockerfile -t sluice-api .
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --uid 10001 --create-home sluice
WORKDIR /app

# The packages change seldom, so their layer comes before the code.
COPY requirements/api.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/api.txt

COPY LICENSE .env.example ./
COPY deploy/docker/probe.py deploy/docker/
COPY shared shared
COPY api api

USER sluice
# In a container loopback is of no use. Beyond it a start wants API_KEYS, or ALLOW_ANONYMOUS=1.
ENV HOST=0.0.0.0 \
    PORT=8000
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "deploy/docker/probe.py", "8000", "/livez"]
CMD ["python", "-m", "api"]
