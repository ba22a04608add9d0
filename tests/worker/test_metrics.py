"""The worker's port: figures with every label there from the start, and a liveness that tells a stall."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from shared.request import Usage
from shared.worker_info import WorkerState
from worker.metrics import MetricsPort, WorkerMetrics


@pytest.fixture
def port() -> Iterator[tuple[WorkerMetrics, str]]:
    metrics = WorkerMetrics("w1", "simulated")
    server = MetricsPort(metrics, "127.0.0.1", 0)
    yield metrics, f"http://127.0.0.1:{server.port}"
    server.close()


def test_figures_are_served(port: tuple[WorkerMetrics, str]) -> None:
    metrics, url = port
    metrics.batch("w1-1", "0123456789abcdef", 5, 10)
    metrics.tokens(Usage(7, 3, 2))
    text = httpx.get(f"{url}/metrics").text
    assert 'sluice_tokens_total{direction="cached"} 2.0' in text
    assert 'sluice_batch_size_sum{engine="simulated"} 5.0' in text
    assert 'sluice_worker_state{state="starting",worker="w1"} 1.0' in text
    assert "sluice_fenced_results_total 0.0" in text


def test_batch_and_bucket_are_named_for_who_reads_openmetrics(
    port: tuple[WorkerMetrics, str],
) -> None:
    metrics, url = port
    metrics.batch(f"{'w' * 64}-1000000", "0123456789abcdef", 5, 10)
    reply = httpx.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    named = [line for line in reply.text.splitlines() if "0123456789abcdef" in line]
    assert len(named) == 1
    assert named[0].startswith(
        'sluice_batch_size_bucket{engine="simulated",le="8.0"} 1.0 # {batch="w'
    )
    assert reply.text.count("# EOF") == 1


def test_the_engine_is_named_once_it_is_known() -> None:
    """The port is open while the engine still loads, so the figures are there before its name is."""
    metrics = WorkerMetrics("w1")
    assert b'sluice_worker_state{state="starting",worker="w1"} 1.0' in metrics.render()[0]
    metrics.engine = "simulated"
    metrics.batch("w1-1", "0123456789abcdef", 5, 10)
    assert b'sluice_batch_size_sum{engine="simulated"} 5.0' in metrics.render()[0]


def test_a_stalled_worker_is_red_and_a_busy_one_is_not(port: tuple[WorkerMetrics, str]) -> None:
    metrics, url = port
    metrics.state(WorkerState.BUSY, 1)
    assert httpx.get(f"{url}/livez").status_code == 200
    metrics.state(WorkerState.STALLED, 1)
    assert httpx.get(f"{url}/livez").status_code == 503
    assert httpx.get(f"{url}/other").status_code == 404
