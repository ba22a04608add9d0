"""The soak: what counts as left over, what as growth, and its three ways of asking on a real service."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import uvloop

from bench import soak
from bench.remains import Memory, Remains, beyond
from bench.soak import MIB, Measured, Progress
from bench.stack import service
from tests.bench.test_figures import KEYS


def measured(**changes: object) -> Measured:
    sizes = [(n, {"api": (60 + n // 500) * MIB, "worker": 50 * MIB}) for n in range(100, 1001, 100)]
    progress = Progress(1000, 1000, 55, Counter(finished=1000), sizes)
    whole: dict[str, object] = {
        "progress": progress,
        "seconds": 2.0,
        "first": Memory(3 * MIB, 2 * MIB),
        "last": Memory(4 * MIB, 2 * MIB),
        "live": {"live": 0, "when": 0},
        "names": ["flags", "stat"],
        "beyond": [],
    }
    return Measured(**{**whole, **changes})  # type: ignore[arg-type]


def missed(found: Measured) -> list[str]:
    return [figure.name for figure in soak.shown(found, 1000) if figure.ok is False]


def test_a_queue_that_kept_nothing_meets_every_target() -> None:
    assert missed(measured()) == []


def test_what_is_left_grown_or_not_answered_misses() -> None:
    assert missed(measured(live={"live": 0, "when": 1})) == ["soak.left.when"]
    assert missed(measured(beyond=["res:q.0-1"])) == ["soak.keys_of_requests"]
    assert missed(measured(last=Memory(6 * MIB, 2 * MIB))) == ["soak.broker_memory_growth"]
    grown = Progress(1000, 1000, 55, Counter(finished=999), [(100, {"api": 60, "worker": 50})])
    grown.rss.append((1000, {"api": 60, "worker": 53}))
    assert missed(measured(progress=grown)) == ["soak.answered", "soak.worker_rss_growth"]


def test_growth_is_counted_from_where_a_process_has_settled() -> None:
    samples = [(100, {"api": 10}), (200, {"api": 100}), (300, {"api": 103}), (400, {"api": 90})]
    assert soak.growth_percent(samples, "api", 200) == pytest.approx(3.0)


def test_keys_of_requests_are_told_from_the_queues_own() -> None:
    fixed = ["in", "flags", "ready:0", "when", "dlq", "out:api-1", "ctl:worker-1.ab"]
    assert beyond(fixed) == []
    of_requests = ["res:q.0-1", "body:q.0-1", "grp:q.0-1", "part:q.0-1"]
    assert beyond([*fixed, *of_requests]) == of_requests


def test_requests_go_in_by_all_three_ways_and_leave_nothing_live(tmp_path: Path) -> None:
    with service(tmp_path, soak.SHORT_LIVES) as stack:
        progress = Progress()
        uvloop.run(soak.drive(stack, range(400), 400, progress))
        # 16 by the hand of number 0, which is a list, and 15 more over HTTP.
        assert (progress.requests, progress.over_http) == (415, 31)
        assert progress.ends == Counter(finished=415)
        assert [asked for asked, _ in progress.rss] == list(range(4, 401, 4))
        assert all(set(rss) == {"api", "worker"} for _, rss in progress.rss)
        remains = Remains(stack.redis_url)
        try:
            assert set(remains.live().values()) == {0}
            assert len(beyond(remains.names())) > 415
        finally:
            remains.close()


def test_too_few_requests_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.soak", "--requests", "10"])
    with pytest.raises(SystemExit, match="2"):
        soak.main()
    assert "at least 100" in capsys.readouterr().err
    assert list(vars(next(soak.shown(measured(), 1000)))) == KEYS
