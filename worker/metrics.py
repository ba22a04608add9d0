"""The worker's own figures, and the small port that serves them: `/metrics` and `/livez`.

Names and buckets as in the metrics page of the docs; the engine's own `vllm:` figures live in the
default registry and are passed on unchanged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.request import Usage
from shared.worker_info import WorkerState

log = logging.getLogger(__name__)
RATE_S = 10.0
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Rate:
    """How fast a total grows, over about the last ten seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, total: int) -> float:
        """Per second; `now` in seconds of a clock that never goes back."""
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_S:
            self._seen.popleft()
        since, before = self._seen[0]
        return (total - before) / (now - since) if now > since else 0.0


class WorkerMetrics:
    """Collectors of one worker on a registry of its own. `engine` is known once one has been started."""

    def __init__(self, worker_id: str, engine: str = "") -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._worker = worker_id
        self._batch_size = Histogram(
            "sluice_batch_size",
            "Requests of one micro-batch",
            ["engine"],
            buckets=SIZES,
            registry=self.registry,
        )
        self._batch_fill = Histogram(
            "sluice_batch_fill_ratio",
            "Size of a micro-batch over the engine's slots",
            ["engine"],
            buckets=(0.05, 0.1, 0.25, 0.5, 0.75, 1),
            registry=self.registry,
        )
        self._tokens = Counter(
            "sluice_tokens_total", "Tokens by direction", ["direction"], registry=self.registry
        )
        self._fenced = Counter(
            "sluice_fenced_results_total",
            "Results of runs that no longer owned their request",
            registry=self.registry,
        )
        self._repairs = Counter(
            "sluice_engine_repairs_total",
            "Repairs of the engine's arguments at start-up",
            ["step"],
            registry=self.registry,
        )
        self._state = Gauge(
            "sluice_worker_state",
            "1 for the state it is in",
            ["worker", "state"],
            registry=self.registry,
        )
        self._progress = Gauge(
            "sluice_worker_last_progress_timestamp_seconds",
            "When the engine last moved",
            ["worker"],
            registry=self.registry,
        )
        self._input, self._cached, self._output = (
            self._tokens.labels(direction) for direction in ("input", "cached", "output")
        )
        self._last_progress = -1
        self.state(WorkerState.STARTING, 0)
        if engine:
            self.engine = engine

    @property
    def engine(self) -> str:
        return self._engine

    @engine.setter
    def engine(self, name: str) -> None:
        self._engine = name
        # Looked up once: every batch is counted.
        self._size, self._fill = self._batch_size.labels(name), self._batch_fill.labels(name)

    def batch(self, name: str, bucket_key: str, size: int, slots: int) -> None:
        """Batch and bucket are named as an exemplar: as labels they would make series without end."""
        self._size.observe(size, {"batch": name, "bucket": bucket_key})
        self._fill.observe(size / max(1, slots))

    def tokens(self, usage: Usage) -> None:
        self._input.inc(usage.prompt_tokens)
        if usage.cached_tokens:
            self._cached.inc(usage.cached_tokens)
        self._output.inc(usage.completion_tokens)

    def fenced(self) -> None:
        self._fenced.inc()

    def repaired(self, step: str) -> None:
        self._repairs.labels(step).inc()

    def state(self, state: WorkerState, progress: int) -> None:
        self.current = state
        for each in WorkerState:
            self._state.labels(self._worker, each.value).set(each is state)
        if progress != self._last_progress:
            self._last_progress = progress
            self._progress.labels(self._worker).set(time.time())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics, which has exemplars, for who takes it."""
        encode, content_type = choose_encoder(accept)
        return encode(_Both(self.registry, REGISTRY)), content_type


class _Both(Collector):
    """Two registries as one page."""

    def __init__(self, *registries: CollectorRegistry) -> None:
        self._registries = registries

    def collect(self) -> Iterable[Metric]:
        for registry in self._registries:
            yield from registry.collect()


class MetricsPort:
    """Serves on a thread of its own, so that a blocked event loop can still be seen.

    Raises OSError where the address cannot be listened on.
    """

    def __init__(self, metrics: WorkerMetrics, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply(200, *metrics.render(self.headers.get("accept", "")))
                elif self.path == "/livez":
                    is_red = metrics.current in (WorkerState.STALLED, WorkerState.SETUP_FAILED)
                    body = metrics.current.value.encode() + b"\n"
                    self._reply(503 if is_red else 200, body, "text/plain")
                else:
                    self._reply(404, b"not found\n", "text/plain")

            def _reply(self, status: int, body: bytes, content_type: str) -> None:
                self.send_response(status)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                log.debug(format, *args)

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
