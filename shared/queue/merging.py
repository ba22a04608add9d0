"""Several runs of one script in one command, where runs of it come in bursts: submits and finishes.

What a run costs is half its surroundings: the command's fixed keys, the script's shared pieces, the reply's way back,
and a blocked reader that is woken for each. Nothing changes for the script or its caller: each run has a reply of its
own, an error in one is no error of the others, and all are as safe to run twice as one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shared.queue.scripts import Arg, Call
from shared.queue.wire import Command

MOST = 8  # runs in one command: the server does nothing else meanwhile
MOST_BYTES = 256 << 10


def runs(calls: Sequence[Call | Command], sizes: Iterable[int]) -> Iterator[list[int]]:
    """Places of neighbours that may travel as one, in order; every place is in one of them."""
    run: list[int] = []
    first: Call | None = None
    size = 0
    for place, (call, more) in enumerate(zip(calls, sizes, strict=True)):
        fits = first is not None and len(run) < MOST and _are_alike(first, call)
        if run and not (fits and size + more <= MOST_BYTES):
            yield run
            run, size = [], 0
        if not run:
            first = call if isinstance(call, Call) and call.script.several is not None else None
        run.append(place)
        size += more
    if run:
        yield run


def merged(calls: Sequence[Call]) -> Call:
    """One call whose reply is the list of theirs, errors among them."""
    script = calls[0].script.several
    assert script is not None
    n_fixed = len(script.fixed)
    keys = list(calls[0].keys[:n_fixed])
    args: list[Arg] = [calls[0].args[0], len(calls)]
    for call in calls:
        keys += call.keys[n_fixed:]
        args += (len(call.keys) - n_fixed, len(call.args) - 1, *call.args[1:])
    return Call(script, tuple(keys), tuple(args))


def _are_alike(first: Call, call: Call | Command) -> bool:
    """The same script over the same shard's keys, by the same clock."""
    if not isinstance(call, Call) or call.script is not first.script:
        return False
    # The first fixed key names the shard as well as all of them.
    return call.args[0] == first.args[0] and call.keys[0] == first.keys[0]


def size_of(call: Call | Command) -> int:
    """Near enough: the payloads among its arguments, in bytes."""
    args = call.args if isinstance(call, Call) else call
    return sum([len(arg) for arg in args if isinstance(arg, bytes)])
