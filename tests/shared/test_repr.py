"""What gets into a log or a traceback by its `repr` shows no prompt and no answer."""

from __future__ import annotations

import time

import pytest
from ulid import ULID

from shared.queue.assembler import Text
from shared.queue.claiming import Grant
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.queue.submission import meta
from shared.queue.waiters import Answer
from shared.request import Body, Chunk, Message, Req, short
from shared.sampling import SamplingParams
from tests.shared.records import outcome, record

SECRET = "what nobody may read"
PLACE = "default.0-01h8xgjwbwbaq4"
SAMPLING = SamplingParams(max_tokens=4)
MESSAGES = (Message("user", SECRET), Message("assistant", SECRET, "ada"))
REQ = Req(
    id=PLACE,
    sampling=SAMPLING,
    bucket_key=SAMPLING.bucket_key,
    digest="d",
    prompt=SECRET,
    system_prompt=SECRET,
)
OUTCOME = outcome(state="F")
BODY = Body(SECRET, (1, 2, 3), reasoning=SECRET, logprobs=[{"token": SECRET}])


def test_a_request_tells_eight_characters_of_its_id_and_how_long_it_is() -> None:
    assert repr(REQ) == f"Req(id=...jwbwbaq4, prompt_len={len(SECRET)})"
    chat = Req(
        id=PLACE, sampling=SAMPLING, bucket_key="b", digest="d", messages=MESSAGES, tenant="t"
    )
    assert repr(chat) == f"Req(id=...jwbwbaq4, prompt_len={2 * len(SECRET)})"


def test_an_answer_tells_its_status_and_how_long_it_is() -> None:
    answer = Answer(PLACE, OUTCOME, BODY)
    assert repr(answer) == "Answer(id=...jwbwbaq4, status=finished, output_len=20)"
    assert repr(Answer(PLACE, OUTCOME, None)).endswith("output_len=None)")
    assert repr(BODY) == "Body(output_len=20, n_tokens=3)"


@pytest.mark.parametrize(
    ("rid", "shown"),
    [
        ("a-b.0-01h8xgjwbwbaq4.7", "...jwbwbaq4.7"),
        ("a-b.0-01h8xgjwbwbaq4", "...jwbwbaq4"),
        ("3f2504e04f8911d39a0c0305e82c3301", "...e82c3301"),
        ("q.0-x", "x"),
    ],
)
def test_an_id_is_cut_to_its_last_eight_characters_and_its_index(rid: str, shown: str) -> None:
    assert short(rid) == shown


def test_ids_of_one_moment_and_the_items_of_one_list_are_told_apart() -> None:
    now = time.time()
    made = [f"default.0-{str(ULID.from_timestamp(now)).lower()}" for _ in range(20)]
    items = [f"{made[0]}.{i}" for i in range(20)]
    assert len({short(rid) for rid in made + items}) == 40


@pytest.mark.parametrize(
    "value",
    [
        REQ,
        record(),
        OUTCOME,
        BODY,
        Answer(PLACE, OUTCOME, BODY),
        Chunk(1, 0, SECRET),
        Text(1, 0, SECRET),
        *MESSAGES,
        Grant(PLACE, "1-1", 1, 1, 0, 0, [], SECRET.encode()),
        Scripts(Keys("q")).submit(
            PLACE, SECRET.encode(), meta(REQ, api_id="", held=False, wants_position=False), []
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_repr_shows_a_prompt_or_an_answer(value: object) -> None:
    assert SECRET not in f"{value!r} {value}"
