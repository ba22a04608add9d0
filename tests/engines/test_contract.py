"""What every engine keeps, whatever runs inside it: one test body for all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from shared.errors import EngineDead, InvalidRequest
from shared.request import FinishReason
from shared.sampling import SamplingParams
from tests.engines.bench_rig import Rig

# The libraries warn of themselves while they load and run; that is not what is tested here.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]

QUESTIONS = ("What is the capital of France?", "Name a colour.", "Count from one to ten, please.")
LONG_S = 60.0
MARKER = "<|im_end|>"


@pytest.fixture
def any_model_rig(rig: Rig) -> Rig:
    """An engine with a model inside: where what is asked of chance and probabilities shows in the answer."""
    if rig.engine.name == "simulated":
        pytest.skip("no model: it draws nothing, knows no penalty, and has no vocabulary")
    return rig


@pytest.fixture
def model_rig(any_model_rig: Rig) -> Rig:
    """Both of vLLM's have the same words and the same model, so one of them says what those do."""
    if any_model_rig.engine.name == "vllm_offline":
        pytest.skip("vllm_async says it for both")
    return any_model_rig


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "min_tokens": 0, "temperature": 0.0, **fields})


def drawn(**fields: Any) -> SamplingParams:
    """So hot that no two draws are alike by accident."""
    return greedy(**{"temperature": 2.0, "ignore_eos": True, **fields})


def repeats(ids: tuple[int, ...]) -> int:
    return len(ids) - len(set(ids))


async def test_the_report_tells_each_try_and_what_was_mended(rig: Rig) -> None:
    name = rig.engine.name
    told = [(step.name, bool(step.error)) for step in rig.report]
    repair = ("repair load_format: load_format left out, was 'awq'", False)
    mended = [(name, True), repair] if name == "vllm_offline" else []
    tokenizer = [] if name == "simulated" else [("tokenizer", False)]
    assert told == [*tokenizer, *mended, (name, False)]


async def test_each_request_of_a_batch_is_answered_once_in_one_piece(rig: Rig) -> None:
    answers = await rig.answers(QUESTIONS, greedy())
    for answer in answers:
        assert len(answer.pieces) == 1
        assert answer.text.strip()
        assert answer.ids
        assert answer.finish_reason in (FinishReason.stop, FinishReason.length)
        assert answer.error is None


async def test_answers_belong_to_their_questions(rig: Rig) -> None:
    [about_france, colour, _] = await rig.answers(QUESTIONS, greedy())
    assert ("Paris" if rig.engine.name != "simulated" else "France") in about_france.text
    assert "colo" in colour.text.lower()


async def test_a_stream_gives_the_same_text_in_many_pieces(rig: Rig) -> None:
    whole = await rig.answers(QUESTIONS, greedy())
    streamed = await rig.answers(QUESTIONS, greedy(), stream=True)
    assert [a.text for a in streamed] == [a.text for a in whole]
    assert [a.ids for a in streamed] == [a.ids for a in whole]
    assert all(len(a.pieces) > 1 for a in streamed)
    assert all(not p.is_last for a in streamed for p in a.pieces[:-1])


async def test_an_answer_ends_at_its_limit(rig: Rig) -> None:
    answer = await rig.answer(QUESTIONS[2], greedy(max_tokens=3))
    assert (answer.finish_reason, len(answer.ids)) == (FinishReason.length, 3)


async def test_rows_of_one_call_end_at_their_own_limits(rig: Rig) -> None:
    params = greedy(max_tokens=12, ignore_eos=True)
    prompts = [await rig.prompt(text, params) for text in QUESTIONS]
    limits = (3, None, 30)
    own = [
        msgspec.structs.replace(prompt, max_tokens=limit)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    answers = await rig.run(own, params)
    assert [len(answer.ids) for answer in answers] == [3, 12, 30]
    assert {answer.finish_reason for answer in answers} == {FinishReason.length}


async def test_without_end_of_sequence_an_answer_runs_to_its_limit(rig: Rig) -> None:
    answers = await rig.answers(QUESTIONS, greedy(max_tokens=40, ignore_eos=True))
    assert [len(a.ids) for a in answers] == [40, 40, 40]
    assert {a.finish_reason for a in answers} == {FinishReason.length}


async def test_an_answer_has_at_least_its_least_tokens(rig: Rig) -> None:
    short = await rig.answer(QUESTIONS[0], greedy())
    longer = await rig.answer(QUESTIONS[0], greedy(min_tokens=len(short.ids) + 4))
    assert len(longer.ids) >= len(short.ids) + 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_itself(rig: Rig, stream: bool) -> None:
    whole = (await rig.answer(QUESTIONS[0], greedy())).text
    stop = whole[7:12]  # inside one token and over the border of the next
    answer = await rig.answer(QUESTIONS[0], greedy(stop=("never said", stop)), stream=stream)
    assert answer.text == whole[: whole.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.stop, stop)


async def test_end_markers_as_stop_strings_change_nothing(rig: Rig) -> None:
    plain = await rig.answer(QUESTIONS[0], greedy())
    marked = await rig.answer(QUESTIONS[0], greedy(stop=(MARKER, "<|endoftext|>")))
    assert marked.text == plain.text
    assert marked.stop_reason is None, "the model's own end, not a stop string"


async def test_where_prompt_and_answer_do_not_fit_together_the_answer_ends_early(rig: Rig) -> None:
    params = greedy(max_tokens=200, ignore_eos=True)
    prompt = await rig.prompt("word " * 100, params)
    room = rig.engine.max_model_len - len(prompt.token_ids)
    [answer] = await rig.run([prompt], params)
    assert 0 < room < 200
    assert (answer.finish_reason, len(answer.ids)) == (FinishReason.length, room)


async def test_an_aborted_request_ends_with_what_it_has_and_the_others_go_on(rig: Rig) -> None:
    params = greedy(max_tokens=120, ignore_eos=True)
    prompts = [await rig.prompt(text, params) for text in QUESTIONS]
    ended: dict[str, Any] = {}
    counts = dict.fromkeys((p.request_id for p in prompts), 0)
    async for piece in rig.pieces(prompts, params, stream=True):
        counts[piece.request_id] += len(piece.token_ids)
        if piece.request_id == prompts[1].request_id and not piece.is_last:
            await rig.engine.abort([prompts[1].request_id, "test.0-unknown"])
        if piece.is_last:
            ended[piece.request_id] = piece.finish_reason
    assert list(ended.values()).count(FinishReason.abort) == 1
    assert ended[prompts[1].request_id] is FinishReason.abort
    assert counts[prompts[1].request_id] < 120
    assert counts[prompts[0].request_id] == counts[prompts[2].request_id] == 120


async def test_an_abort_reaches_a_request_that_does_not_stream(rig: Rig) -> None:
    params = greedy(max_tokens=200, ignore_eos=True)
    prompt = await rig.prompt(QUESTIONS[0], params)
    running = asyncio.create_task(rig.run([prompt], params))
    before = rig.engine.progress
    async with asyncio.timeout(LONG_S):
        # An id that is not running yet is ignored, so this goes on until it is.
        while not running.done():
            if rig.engine.progress > before or rig.engine.name == "simulated":
                await rig.engine.abort([prompt.request_id])
            await asyncio.sleep(0.002)
    [answer] = await running
    assert answer.finish_reason is FinishReason.abort
    assert len(answer.ids) < 200


async def test_an_abandoned_run_leaves_the_engine_to_others(rig: Rig) -> None:
    params = greedy(max_tokens=200, ignore_eos=True)
    pieces = rig.pieces([await rig.prompt(QUESTIONS[0], params)], params, stream=True)
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(LONG_S):
        assert (await rig.answer(QUESTIONS[0], greedy())).text


async def test_batches_of_different_parameters_run_beside_each_other(rig: Rig) -> None:
    kinds = [greedy(), greedy(max_tokens=5), greedy(temperature=0.7, top_p=0.9, top_k=20)]
    async with asyncio.timeout(2 * LONG_S):
        done = await asyncio.gather(*(rig.answers(QUESTIONS, params) for params in kinds))
    assert [len(answers) for answers in done] == [3, 3, 3]
    assert all(len(answer.ids) <= 5 for answer in done[1])


async def test_a_later_batch_does_not_wait_for_the_one_before(rig: Rig) -> None:
    if rig.engine.capabilities.rows_share:
        pytest.skip("one call at a time")
    long = asyncio.create_task(rig.answers(QUESTIONS, greedy(max_tokens=200, ignore_eos=True)))
    before = rig.engine.progress
    async with asyncio.timeout(LONG_S):
        while rig.engine.progress == before and rig.engine.name != "simulated":
            await asyncio.sleep(0.002)
        assert (await rig.answer(QUESTIONS[0], greedy(max_tokens=3))).ids
        assert not long.done()
        await long


ONE_OF_EACH: dict[str, Any] = {
    "max_tokens": 4,
    "min_tokens": 2,
    "stop": ("zzz",),
    "stop_token_ids": (5, 6),
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 5,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": -0.2,
    "echo": False,
    "skip_special_tokens": False,
    "logprobs": 2,
    "seed": 7,
    "ignore_eos": True,
}


@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
async def test_every_field_that_is_promised_is_taken(rig: Rig, field: str) -> None:
    """A new field must be given a value here, and be taken or not be promised by each engine."""
    _require(rig, field)
    answer = await rig.answer(QUESTIONS[2], greedy(**{"max_tokens": 6, field: ONE_OF_EACH[field]}))
    assert answer.error is None
    assert 1 <= len(answer.ids) <= 6


async def test_logarithms_of_probabilities_belong_to_their_tokens(rig: Rig) -> None:
    _require(rig, "logprobs")
    answer = await rig.answer(QUESTIONS[0], greedy(max_tokens=4, logprobs=2))
    told = answer.pieces[-1].logprobs
    assert told is not None
    assert tuple(entry["token_id"] for entry in told) == answer.ids
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) >= 2 for entry in told)
    assert msgspec.json.encode(told)


async def test_a_seed_gives_the_same_answer_again(model_rig: Rig) -> None:
    params = drawn(seed=11, max_tokens=16)
    first = await model_rig.answer(QUESTIONS[2], params)
    again = await model_rig.answer(QUESTIONS[2], params)
    assert again.ids == first.ids


async def test_two_seeds_give_two_answers_and_minus_one_is_a_seed(model_rig: Rig) -> None:
    answers = [
        await model_rig.answer(QUESTIONS[2], drawn(seed=seed, max_tokens=16))
        for seed in (11, 12, -1, -1)
    ]
    assert len({answer.ids for answer in answers[:3]}) == 3
    assert answers[2].ids == answers[3].ids


async def test_without_a_seed_each_answer_is_drawn_anew(model_rig: Rig) -> None:
    answers = await model_rig.answers([QUESTIONS[2]] * 3, drawn(max_tokens=16))
    assert len({answer.ids for answer in answers}) == 3


@pytest.mark.parametrize("temperature", [0.0, 2.0])
async def test_the_seed_of_one_request_is_not_that_of_the_next(
    model_rig: Rig, temperature: float
) -> None:
    """One process may have one source of chance; whoever seeds it must not fix what others draw from it."""
    draws = []
    for _ in range(2):
        await model_rig.answer(QUESTIONS[0], drawn(temperature=temperature, seed=11, max_tokens=4))
        draws.append(await model_rig.answer(QUESTIONS[2], drawn(max_tokens=16)))
    assert draws[0].ids != draws[1].ids


async def test_a_low_temperature_says_the_likeliest_and_a_high_one_other_things(
    model_rig: Rig,
) -> None:
    likeliest = await model_rig.answer(QUESTIONS[2], greedy(ignore_eos=True))
    cold = await model_rig.answer(QUESTIONS[2], drawn(temperature=0.01, seed=11))
    hot = await model_rig.answer(QUESTIONS[2], drawn(seed=11))
    assert cold.ids == likeliest.ids
    assert hot.ids != likeliest.ids


@pytest.mark.parametrize("only_one_left", [{"top_k": 1}, {"top_p": 1e-6}])
async def test_where_one_token_is_left_to_draw_from_it_is_the_likeliest(
    model_rig: Rig, only_one_left: dict[str, Any]
) -> None:
    likeliest = await model_rig.answers(QUESTIONS, greedy(ignore_eos=True))
    answers = await model_rig.answers(QUESTIONS, drawn(**only_one_left))
    assert [answer.ids for answer in answers] == [answer.ids for answer in likeliest]


@pytest.mark.parametrize(
    ("penalty", "most_left"),
    [
        ({"repetition_penalty": 5.0}, 0.1),
        ({"frequency_penalty": 2.0}, 0.5),
        ({"presence_penalty": 2.0}, 0.8),
    ],
)
async def test_a_penalty_changes_what_is_said_and_takes_repeats_away(
    any_model_rig: Rig, penalty: dict[str, float], most_left: float
) -> None:
    """`most_left` is the share of the repeats without it."""
    if any_model_rig.engine.name == "vllm_offline" and "repetition_penalty" not in penalty:
        pytest.skip("one says that they arrive; vllm_async says what they do")
    params = {"max_tokens": 64, "ignore_eos": True}
    plain = await any_model_rig.answer(QUESTIONS[2], greedy(**params))
    penalised = await any_model_rig.answer(QUESTIONS[2], greedy(**params, **penalty))
    assert repeats(plain.ids) > 10
    assert penalised.ids != plain.ids
    assert repeats(penalised.ids) <= most_left * repeats(plain.ids)


async def test_special_tokens_are_shown_to_who_asks_for_them(model_rig: Rig) -> None:
    """Past its end a model goes on with the marker of the next turn."""
    hidden = await model_rig.answer(QUESTIONS[0], greedy(ignore_eos=True))
    shown = await model_rig.answer(QUESTIONS[0], greedy(ignore_eos=True, skip_special_tokens=False))
    assert shown.ids == hidden.ids
    assert MARKER in shown.text
    assert MARKER not in hidden.text


@pytest.mark.parametrize("penalty", [1.0, 1.3])
async def test_prompts_of_unequal_length_are_answered_together_as_alone(
    model_rig: Rig, penalty: float
) -> None:
    """In float32; with fewer digits the company may tip a close choice. What fills up a row counts nowhere."""
    params = greedy(repetition_penalty=penalty, max_tokens=12)
    texts = (QUESTIONS[1], "Here is a story. " * 8 + "What was it about?", QUESTIONS[0])
    together = await model_rig.answers(texts, params)
    alone = [await model_rig.answer(text, params) for text in texts]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


async def test_a_token_that_the_model_does_not_have_is_refused_and_nobody_else_suffers(
    any_model_rig: Rig,
) -> None:
    refused, served = await asyncio.gather(
        any_model_rig.answers(QUESTIONS, greedy(stop_token_ids=(2**31 - 1,), min_tokens=1)),
        any_model_rig.answers(QUESTIONS, greedy()),
    )
    assert all(isinstance(answer.error, InvalidRequest) for answer in refused)
    assert all("stop_token_ids" in str(answer.error) for answer in refused)
    assert all(answer.error is None for answer in served)


async def test_a_token_id_that_stops_is_named_also_if_it_is_the_models_own_end(
    any_model_rig: Rig,
) -> None:
    whole = await any_model_rig.answer(QUESTIONS[0], greedy())
    assert (whole.finish_reason, whole.stop_reason) == (FinishReason.stop, None)
    for n_tokens in (4, len(whole.ids)):
        last = whole.ids[n_tokens - 1]
        answer = await any_model_rig.answer(QUESTIONS[0], greedy(stop_token_ids=(last,)))
        assert (answer.finish_reason, answer.stop_reason) == (FinishReason.stop, last)
        assert answer.ids == whole.ids[:n_tokens]


async def test_progress_grows_while_it_works(rig: Rig) -> None:
    before = rig.engine.progress
    await rig.answer(QUESTIONS[0], greedy())
    assert rig.engine.progress > before


async def test_the_time_to_the_first_token_is_told(rig: Rig) -> None:
    began = time.monotonic()
    answers = await rig.answers(QUESTIONS, greedy())
    for answer in answers:
        first_token_s = answer.pieces[-1].first_token_s
        assert first_token_s is not None
        assert 0 < first_token_s <= time.monotonic() - began


async def test_an_engine_that_serves_has_no_failure(rig: Rig) -> None:
    await rig.answer(QUESTIONS[0], greedy())
    assert rig.engine.failure is None


async def test_what_an_engine_tells_of_itself_can_be_shown(rig: Rig) -> None:
    engine = rig.engine
    assert engine.slots >= 1
    assert engine.max_model_len == 256
    assert msgspec.json.encode(engine.effective_args())
    assert engine.capabilities.rows_share <= set(SamplingParams.__struct_fields__)
    assert engine.capabilities.fields <= set(SamplingParams.__struct_fields__)


async def test_the_death_of_its_process_fails_all_that_runs_and_all_that_comes(rig: Rig) -> None:
    """The last one of an engine. One of them dies idle, with workers that hang: also those go with it."""
    if not rig.processes:
        pytest.skip("it has no process of its own")
    if rig.engine.name == "vllm_offline":
        for worker in rig.processes - {rig.core}:
            worker.suspend()
        rig.core.kill()
        async with asyncio.timeout(LONG_S):
            while rig.engine.failure is None:
                await asyncio.sleep(0.01)
            with pytest.raises(EngineDead):
                await rig.answer(QUESTIONS[0], greedy())
        return
    params = greedy(max_tokens=200, ignore_eos=True)
    running = asyncio.create_task(rig.answers(QUESTIONS, params))
    before = rig.engine.progress
    async with asyncio.timeout(LONG_S):
        while rig.engine.progress < before + 3:
            await asyncio.sleep(0.01)
        rig.core.kill()
        with pytest.raises(EngineDead):
            await running
        with pytest.raises(EngineDead):
            await rig.answer(QUESTIONS[0], greedy())
    assert isinstance(rig.engine.failure, EngineDead)


def _require(rig: Rig, field: str) -> None:
    if field not in rig.engine.capabilities.fields:
        pytest.skip(f"{rig.engine.name} does not promise {field}")
