"""What the front door counts and measures, and the text of GET /metrics. Queue figures are the producer's last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.queue.producer import Producer
from shared.queue.waiters import Answer
from shared.request import Priority
from shared.worker_info import WorkerState

CONTENT_TYPE = CONTENT_TYPE_LATEST
# fmt: off
DURATION_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
              1920, 7680)
QUEUE_WAIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900,
                3600, 21600, 86400)
OVERHEAD_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
# fmt: on
# Counters that the broker keeps for the whole queue: its name there, ours, what it counts.
BROKER_COUNTERS = (
    ("dead", "sluice_dead_letters", "Requests given up after crashes or attempts were used up"),
    ("submitted", "sluice_submitted", "Requests that were queued"),
    ("finished", "sluice_finished", "Requests that finished"),
    ("cancelled", "sluice_cancelled", "Requests that were cancelled"),
    ("error", "sluice_failed", "Requests that ended with an error"),
)
# Why a request was handed out again.
REDELIVERIES = ("released", "reclaimed", "crashes")


class Metrics:
    """One process's collectors in a registry of their own. `model` is a label that follows the live workers."""

    def __init__(self, producer: Producer, codes: Iterable[str]) -> None:
        self._producer = producer
        self._registry = CollectorRegistry()
        registry = self._registry
        who = ("route", "model", "priority")
        self._requests = Counter(
            "sluice_requests_total",
            "Answered HTTP requests",
            (*who, "outcome", "code"),
            registry=registry,
        )
        self._rejections = Counter(
            "sluice_rejections_total",
            "Requests refused before the queue",
            ("reason",),
            registry=registry,
        )
        self._duration = Histogram(
            "sluice_request_duration_seconds",
            "From the first byte of a request to the last of its answer",
            who,
            buckets=DURATION_S,
            registry=registry,
        )
        self._queue_wait = Histogram(
            "sluice_queue_wait_seconds",
            "From the submit to the start, by the queue's clock",
            ("model", "priority"),
            buckets=QUEUE_WAIT_S,
            registry=registry,
        )
        # Finding a series by its labels costs more than counting, and there are few.
        self._answered: dict[tuple[str, ...], tuple[Counter, Histogram]] = {}
        overhead = Histogram(
            "sluice_overhead_seconds",
            "Time of our own",
            ("stage",),
            buckets=OVERHEAD_S,
            registry=registry,
        )
        self._admission = overhead.labels("admission")
        for code in codes:
            self._rejections.labels(code)
        Gauge(
            "sluice_waiters", "Callers that wait in this process", registry=registry
        ).set_function(lambda: producer.waiting)
        self._registry.register(_QueueFigures(producer))

    def admitted(self, seconds: float) -> None:
        self._admission.observe(seconds)

    def delivered(self, answers: Iterable[Answer | None], priority: Priority) -> None:
        """To a caller that waited for them."""
        series = self._queue_wait.labels(served_model(self._producer), priority.name)
        for answer in answers:
            if answer is not None and answer.outcome.started_ms:
                waited_ms = answer.outcome.started_ms - answer.outcome.submitted_ms
                series.observe(max(0, waited_ms) / 1000)

    def rejected(self, code: str) -> None:
        self._rejections.labels(code).inc()

    def answered(self, route: str, priority: str, outcome: str, code: str, seconds: float) -> None:
        model = served_model(self._producer)
        key = (route, model, priority, outcome, code)
        series = self._answered.get(key)
        if series is None:
            series = (self._requests.labels(*key), self._duration.labels(*key[:3]))
            self._answered[key] = series
        series[0].inc()
        series[1].observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def served_model(producer: Producer) -> str:
    """The model of the first live worker; a queue serves one."""
    return next(
        (w.info.model for w in producer.known_workers if w.is_live and w.info.model), "unknown"
    )


class _QueueFigures(Collector):
    """What the producer last read, within a second while the broker answers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "sluice_broker_up",
            "Whether the broker answered the last call",
            float(self._producer.is_up),
        )
        yield from self._workers()
        stats = self._producer.known_stats
        if stats is None:
            return
        model = served_model(self._producer)
        depth = GaugeMetricFamily(
            "sluice_queue_depth", "Queued requests", labels=("model", "priority")
        )
        for priority, number in stats.depth.items():
            depth.add_metric((model, priority), number)
        yield depth
        for name, text, value in (
            (
                "sluice_queue_redelivered",
                "Queued requests that a worker gave back",
                stats.redelivered,
            ),
            ("sluice_queue_suspects", "Queued requests whose worker died", stats.suspects),
            ("sluice_queue_tokens", "Tokens of all live requests, estimated", stats.tokens),
            (
                "sluice_queue_oldest_age_seconds",
                "Age of the oldest queued request",
                stats.oldest_age_s,
            ),
            ("sluice_inflight", "Requests that workers hold", stats.running),
            ("sluice_queue_paused", "Whether the queue hands out nothing", float(stats.paused)),
        ):
            family = GaugeMetricFamily(name, text, labels=("model",))
            family.add_metric((model,), value)
            yield family
        for key, name, text in BROKER_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("model",))
            counter.add_metric((model,), stats.counters.get(key, 0))
            yield counter
        again = CounterMetricFamily(
            "sluice_redeliveries", "Requests that were handed out again", labels=("model", "cause")
        )
        for cause in REDELIVERIES:
            again.add_metric((model, cause), stats.counters.get(cause, 0))
        yield again

    def _workers(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "sluice_worker_state", "1 for the state a live worker is in", labels=("worker", "state")
        )
        for worker in self._producer.known_workers:
            if worker.is_live:
                for state in WorkerState:
                    is_in = float(worker.info.state is state)
                    states.add_metric((worker.info.id, state.value), is_in)
        yield states
