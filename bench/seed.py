"""`python -m bench.seed`: the first seed's evaluation. All questions in one `POST /predict`, once 92 and once 358, with
one worker and with two.

Batch mode, real model, real processes, over HTTP, settings as they come: the answers' length is routed. Beside the
figures it checks that batch mode is what answers, and the reply: nothing is missing, nothing is blank without a
word, and every answer is at its place. A service with API_KEYS is asked with the one in SLUICE_API_KEY.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from bench import figures, machine
from bench.exam import Question, papers
from bench.settings import api_key
from bench.stack import StackError, model_folder, service, serving

SIZES = (92, 358)
QUICK_SIZES = (92,)
WORKERS = (1, 2)
LIMIT_S = (
    360.0  # the first seed's contract: whole evaluation, whatever comes later counts for nothing
)
MARGIN_S = 30.0  # so that the service, which holds a caller as long, is the first to say that it is too late
TOO_LATE = "wait_timeout"
OFFLINE = "vllm_offline"  # the engine of batch mode
ECHO_SHARE = 0.5  # a small model does not even copy a number each time
SHOWN = 300  # characters of a reply that is no answer
TOLD = 10  # faults in full


@dataclass(frozen=True)
class Reply:
    """Of one list. `items` is what `GET /requests/{id}` tells of each afterwards. One that came too late has no
    answers, whatever its items tell.
    """

    seconds: float
    response: Sequence[str]
    named: frozenset[int]
    """Places that `errors` names."""
    items: Sequence[Mapping[str, Any]]
    is_late: bool = False

    @property
    def answered(self) -> int:
        return sum(bool(text.strip()) for text in self.response)

    @property
    def characters(self) -> int:
        return sum(map(len, self.response))

    @property
    def output_tokens(self) -> int:
        return sum(
            usage["completion_tokens"] for item in self.items if (usage := item.get("usage"))
        )


def client_of(url: str) -> httpx.Client:
    """Waits as long as the service does, and is known to it where it wants a key."""
    key = api_key()
    return httpx.Client(
        base_url=url,
        timeout=LIMIT_S + MARGIN_S,
        trust_env=False,
        headers={"authorization": f"Bearer {key}"} if key else {},
    )


def ask(client: httpx.Client, paper: Sequence[Question]) -> Reply:
    """One POST; the time is until its last byte. Raises StackError for what is neither answers nor too late."""
    body = {"prompt": [question.text for question in paper]}
    began = time.perf_counter()
    try:
        reply = client.post("/predict", json=body)
    except httpx.ReadTimeout:
        return Reply(time.perf_counter() - began, (), frozenset(), (), is_late=True)
    seconds = time.perf_counter() - began
    is_late = reply.status_code == httpx.codes.GATEWAY_TIMEOUT and TOO_LATE in reply.text
    if not (is_late or reply.status_code == httpx.codes.OK):
        told = reply.text[:SHOWN]
        raise StackError(f"/predict answered {reply.status_code} after {seconds:.0f} s: {told}")
    # A caller that names no id of its own is told the queue's, under which the list can be looked up.
    known = client.get(f"/requests/{reply.headers['x-request-id']}")
    known.raise_for_status()
    items = known.json()["items"]
    if is_late:
        return Reply(seconds, (), frozenset(), items, is_late=True)
    shown = reply.json()
    named = frozenset(error["index"] for error in shown.get("errors", ()))
    return Reply(seconds, shown["response"], named, items)


def in_place(paper: Sequence[Question], response: Sequence[str]) -> int:
    """How many answers name what only theirs can name."""
    pairs = zip(paper, response, strict=False)
    return sum(question.echo is not None and question.echo in text for question, text in pairs)


def faults(paper: Sequence[Question], reply: Reply) -> Iterator[str]:
    """What the reply breaks of the contract, a line each."""
    if reply.is_late:
        done = sum(bool(item.get("text")) for item in reply.items)
        yield f"no reply in time, after {reply.seconds:.0f} s; under its id {done} answers are there"
        return
    if len(reply.response) != len(paper):
        yield f"{len(reply.response)} answers to {len(paper)} questions"
    if [item["index"] for item in reply.items] != list(range(len(paper))):
        yield "the list under its id has other places than the questions"
    places = {question.echo: place for place, question in enumerate(paper) if question.echo}
    for place, text in enumerate(reply.response):
        is_blank, is_named = not text.strip(), place in reply.named
        if is_blank and not is_named:
            yield f"answer {place} is blank, and no error says why"
        if is_named and not is_blank:
            yield f"answer {place} is there, and an error says that it is not"
        for echo, home in places.items():
            if echo in text and home != place:
                yield f"answer {place} is the one to question {home}: {text[:SHOWN]!r}"
    for item, text in zip(reply.items, reply.response, strict=False):
        if (item["text"] or "") != text:
            yield f"answer {item['index']} differs from the one under its own id"


def shown(prefix: str, paper: Sequence[Question], reply: Reply) -> Iterator[figures.Figure]:
    found = list(faults(paper, reply))
    for line in found[:TOLD]:
        figures.note(f"{prefix}: {line}")
    n_echoes = sum(question.echo is not None for question in paper)
    within = figures.at_most(f"{prefix}.seconds", reply.seconds, "s", LIMIT_S)
    yield replace(within, ok=False) if reply.is_late else within
    yield figures.at_least(f"{prefix}.answered", reply.answered, "answers", len(paper))
    yield figures.at_most(f"{prefix}.faults", len(found), "faults", 0)
    yield figures.at_least(
        f"{prefix}.in_place",
        in_place(paper, reply.response) / n_echoes,
        "of the answers that tell",
        ECHO_SHARE,
    )
    tokens_per_s = reply.output_tokens / reply.seconds
    yield figures.plain(f"{prefix}.output_tokens_per_s", tokens_per_s, "tokens/s")
    yield figures.plain(
        f"{prefix}.characters_per_s", reply.characters / reply.seconds, "characters/s"
    )


def mode_faults(status: object, engines: Sequence[str], expected: str) -> Iterator[str]:
    """Where it is not batch mode, or not the engine that it should be, a line each."""
    if status != "batch":
        yield f"GET / says {status!r}, not 'batch'"
    for engine in engines:
        if engine != expected:
            yield f"a worker runs {engine}, not {expected}"


def measure(url: str, sizes: Sequence[int], expected: str) -> bool:
    """Against a service that is there, whose workers should run the engine `expected`. False where a target is
    missed.
    """
    with client_of(url) as client:
        workers = serving(url)
        if not workers:
            raise StackError(f"no worker takes requests at {url}")
        engines = [worker["engine"] for worker in workers]
        count = f"{len(workers)}_worker{'s' if len(workers) > 1 else ''}"
        wrong = list(mode_faults(client.get("/").json().get("status"), engines, expected))
        for line in wrong:
            figures.note(f"seed.{count}: {line}")
        all_met = figures.show(
            [figures.at_most(f"seed.{count}.mode_faults", len(wrong), "faults", 0)]
        )
        told = f"{count.replace('_', ' ')} with {', '.join(sorted(set(engines)))}"
        for size, paper in zip(sizes, papers(sizes), strict=True):
            figures.note(f"{size} questions in one call, {told}")
            reply = ask(client, paper)
            all_met = figures.show(shown(f"seed.{count}.{size}", paper, reply)) and all_met
            shares = Counter(str(item.get("worker")) for item in reply.items)
            figures.note("answered by " + ", ".join(f"{name}: {n}" for name, n in shares.items()))
    return all_met


def run(counts: Sequence[int], sizes: Sequence[int], engine: str, folder: Path) -> bool:
    """A fresh service for each count of workers, so that none finds what another one has cached. `engine` is what
    batch mode chooses where it is blank.
    """
    own = {"BATCH_MODE": "1", "ENGINE": engine}
    if engine != "simulated":
        own["MODEL_DIR"] = str(model_folder())
    all_met = True
    for count in counts:
        figures.note(f"starting the service, workers: {count}")
        with service(folder / str(count), own, workers=count) as stack:
            all_met = measure(stack.url, sizes, engine or OFFLINE) and all_met
    return all_met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.seed", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the 92 alone, with one worker unless --workers is given",
    )
    parser.add_argument("--workers", type=int, nargs="+", metavar="N", help="default: 1 2")
    parser.add_argument(
        "--engine",
        help=f"to run, or at --url to expect; default: what BATCH_MODE=1 chooses, {OFFLINE}",
    )
    parser.add_argument("--url", help="ask the service that is there instead of starting one")
    options = parser.parse_args()
    if options.url and options.workers:
        parser.error("--url: a service that is there has its workers")
    if min(options.workers or WORKERS) < 1:
        parser.error("--workers: must be at least 1")
    sizes = QUICK_SIZES if options.quick else SIZES
    counts = options.workers or (WORKERS[:1] if options.quick else WORKERS)
    figures.note(machine.described())
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            if options.url:
                url = options.url.rstrip("/")
                is_met = measure(url, sizes, options.engine or OFFLINE)
            else:
                is_met = run(counts, sizes, options.engine or "", Path(folder))
            return 0 if is_met else 1
        except (StackError, httpx.HTTPError) as error:
            figures.note(f"bench.seed: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
