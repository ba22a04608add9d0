"""`python -m tests.vectors FILE…`: holds recorded cases against the service. Exit code 1 if one does not hold."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.valkey_server import Server
from tests.vectors.runner import Result, Verdict, run_file, told


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON of vectors")
    files = [path.resolve() for path in parser.parse_args(arguments).files]
    with _broker() as broker_url:
        results = asyncio.run(_run(files, broker_url))
        _say(told(results))
    return int(any(result.verdict is Verdict.FAILED for result in results))


def _say(lines: Iterable[str]) -> None:
    """What the output has no letter for, a half character for one, comes as its number."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))


async def _run(files: Sequence[Path], broker_url: Callable[[], str]) -> list[Result]:
    return [result for path in files for result in await run_file(path, broker_url)]


@contextlib.contextmanager
def _broker() -> Iterator[Callable[[], str]]:
    """One for all vectors, from the first that needs one."""
    servers: list[Server] = []

    def url() -> str:
        if not servers:
            servers.append(Server())
            servers[0].start()
        return servers[0].url

    try:
        yield url
    finally:
        for server in servers:
            server.stop()
            server.clean()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
