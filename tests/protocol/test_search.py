"""A small part of the exhaustive search, and that it would find a protocol without its fence."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.protocol.model import Model
from tests.protocol.search import Bounds, Search, main


@pytest.mark.parametrize(
    ("bounds", "n_states"),
    [
        (Bounds(rollbacks=0), 2364),
        (Bounds(rollbacks=0, is_chained=True), 1026),
        (Bounds(requests=1, clock_steps=0), 1063),
    ],
)
def test_no_state_that_can_be_reached_breaks_what_must_hold(bounds: Bounds, n_states: int) -> None:
    search = Search(bounds)
    search.run()
    assert search.n_states >= n_states


class Unfenced(Model):
    """Takes a result from whoever brings one."""

    def finish(self, rid: str, wid: str, token: str, *rest: Any, **options: Any) -> list[str]:
        record = self.state.live.get(rid)
        wid, token = (record.worker, record.token) if record else (wid, token)
        return super().finish(rid, wid, token, *rest, **options)


def test_the_search_finds_a_protocol_without_its_fence() -> None:
    with pytest.raises(AssertionError, match="S5"):
        Search(Bounds(rollbacks=0), Unfenced).run()


def test_the_command_looks_at_the_whole_of_a_world_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["search", "--requests", "1", "--rollbacks", "0"])
    main()
    told = dict(word.split("=") for word in capsys.readouterr().out.split())
    search = Search(Bounds(requests=1, rollbacks=0))
    search.run()
    assert told.keys() == {"states", "steps", "depth", "seconds"}
    assert int(told["states"]) == search.n_states > 50
