"""`python -m bench.queue`: what the queue itself costs, beside taskiq and arq on the same broker in the same run.

No-ops go through a real broker and real worker processes. Our worker's engine is the simulated one at zero delay, so
that nothing but the queue and the worker's loop is measured. Sides are asked in turns; who is not asked is idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import figures, machine
from bench.load import Run, joined
from bench.noop import measure, round_trips
from bench.peers.asking import Turn
from bench.peers.peer import PEERS, Peer
from bench.peers.venv import python_of
from bench.stack import Service, StackError, service
from shared.errors import SluiceError

LATENCY_LIMIT_MS = 1.2
TIMES_THE_PEER = 4.0
RUN_LIMIT_S = 50.0
NO_DELAY = {"ENGINE": "simulated"}
ALONE = 1


@dataclass(frozen=True)
class Size:
    """One number in flight: our turns and a peer's, and how often each peer is asked between two of ours."""

    ours: Turn
    peers: Turn
    rounds: int


SMALL = Size(Turn(ALONE, 2.0, 0.5), Turn(ALONE, 1.5, 0.5), 1)
LARGE = Size(Turn(64, 2.0, 0.5), Turn(64, 2.0, 0.5), 2)
# Without peers: as long as with them.
LATENCY = Size(Turn(ALONE, 3.0, 0.5), Turn(ALONE, 0.0, 0.0), 1)
OURS = "sluice"


def in_turns(size: Size, peers: Sequence[Peer]) -> Iterator[tuple[Peer | None, Turn]]:
    """None is us: before every turn of a peer, so that a machine that grows slower or quicker favours nobody."""
    if not peers:
        yield None, size.ours
    for number in range(size.rounds):
        for peer in peers if number % 2 == 0 else peers[::-1]:
            yield None, size.ours
            yield peer, size.peers


def run_size(
    stack: Service, size: Size, peers: Sequence[Peer], folder: Path
) -> dict[str, Run[object]]:
    """By the side's name; we are `sluice`."""
    runs: dict[str, list[Run[object]]] = {OURS: []}
    for number, (peer, turn) in enumerate(in_turns(size, peers)):
        name = peer.name if peer is not None else OURS
        figures.note(f"{turn.in_flight} in flight: {name}")
        if peer is not None:
            run = peer.run(stack.redis_url, turn, folder / f"{turn.in_flight}-{number}")
        else:
            asked = measure(stack.redis_url, turn.in_flight, turn.warm_up, turn.items)
            answered = uvloop.run(asked)
            run = Run(answered.seconds, answered.latencies_s, [None] * len(answered.replies))
        runs.setdefault(name, []).append(run)
    return {name: joined(turns) for name, turns in runs.items()}


def p_ms(run: Run[object], percent: float) -> float:
    return 1000 * figures.percentile(run.latencies_s, percent)


def shown(runs: dict[str, Run[object]], in_flight: int) -> Iterator[figures.Figure]:
    name = f"queue.{in_flight}_in_flight"
    ours = runs[OURS]
    peers = {peer: run for peer, run in runs.items() if peer != OURS}
    best_p50 = min((p_ms(run, 50) for run in peers.values()), default=None)
    best_p99 = min((p_ms(run, 99) for run in peers.values()), default=None)
    best_rate = max((run.per_s for run in peers.values()), default=None)
    p50 = p_ms(ours, 50)
    if in_flight == ALONE:
        yield figures.at_most(f"{name}.latency_p50", p50, "ms", LATENCY_LIMIT_MS, best_p50)
    else:
        yield figures.plain(f"{name}.latency_p50", p50, "ms", best_p50)
    yield figures.plain(f"{name}.latency_p99", p_ms(ours, 99), "ms", best_p99)
    if in_flight == ALONE or best_rate is None:
        yield figures.plain(f"{name}.rate", ours.per_s, "requests/s", best_rate)
    else:
        yield figures.at_least_of_peer(
            f"{name}.rate", ours.per_s, "requests/s", best_rate, TIMES_THE_PEER
        )
    for peer, run in peers.items():
        yield figures.plain(f"{name}.{peer}.latency_p50", p_ms(run, 50), "ms")
        yield figures.plain(f"{name}.{peer}.latency_p99", p_ms(run, 99), "ms")
        yield figures.plain(f"{name}.{peer}.rate", run.per_s, "requests/s")


def run(sizes: Sequence[Size], peers: Sequence[Peer], folder: Path) -> bool:
    figures.note(machine.described())
    for peer in peers:
        python_of(peer.name)
    began = time.monotonic()
    all_met = True
    figures.note("starting broker, front door and one worker with the simulated engine")
    with service(folder, NO_DELAY) as stack:
        for size in sizes:
            runs = run_size(stack, size, peers, folder / "peers")
            all_met = figures.show(shown(runs, size.ours.in_flight)) and all_met
        trips = uvloop.run(round_trips(stack.redis_url))
        p50_ms = figures.median(trips.latencies_s) * 1000
        figures.show([figures.plain("queue.broker_round_trip_p50", p50_ms, "ms")])
    passed = time.monotonic() - began
    if peers:
        in_time = figures.at_most("queue.seconds", passed, "s", RUN_LIMIT_S)
        all_met = figures.show([in_time]) and all_met
    return all_met


def with_requests(size: Size, requests: int) -> Size:
    ours, peers = size.ours, size.peers
    return Size(
        Turn(ours.in_flight, ours.seconds, ours.warm_up_s, requests),
        Turn(peers.in_flight, peers.seconds, peers.warm_up_s, requests),
        1,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument(
        "--latency", action="store_true", help="one in flight alone, and no peers; else 64 too"
    )
    parser.add_argument("--no-peers", action="store_true", help="nobody but us")
    parser.add_argument("--requests", type=int, help="so many in each turn", metavar="N")
    options = parser.parse_args()
    sizes: Sequence[Size] = (LATENCY,) if options.latency else (SMALL, LARGE)
    peers = () if options.latency or options.no_peers else PEERS
    if options.requests:
        sizes = [with_requests(size, options.requests) for size in sizes]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(sizes, peers, Path(folder)) else 1
        except (StackError, SluiceError, TimeoutError) as error:
            figures.note(f"bench.queue: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
