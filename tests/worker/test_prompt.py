"""Prompts: the first seed's recorded cases, the proof of the fast path, token ids, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest, PromptTooLong
from shared.request import Message, Req
from shared.sampling import SamplingParams
from tests.e2e.places import model_folder
from worker.prompt import FastPath, Prompts, prove_fast_path
from worker.settings import EngineSettings

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "data" / "chat_template_open.json").read_text("utf-8")
)["vectors"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
QWEN_LIKE = CHATML.replace("{{m.content}}", "{{ m['content'] }}")


def req(prompt: str | None = None, **fields: Any) -> Req:
    return Req(
        id="q.0-1",
        sampling=SamplingParams(max_tokens=8),
        bucket_key="",
        digest="",
        prompt=prompt,
        **fields,
    )


class RecordedTokenizer:
    """As in the recorded cases: its method does not render its template, so one tells which was used."""

    bos_token: str | None = None

    def __init__(self, chat_template: Any) -> None:
        self.chat_template = chat_template

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **kwargs: Any,
    ) -> str:
        assert not tokenize
        text = "".join(f"[{turn['role']}]{turn['content']}" for turn in conversation)
        return text + "[assistant]" * add_generation_prompt

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        raise AssertionError("the recorded cases stop at the text")


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_recorded_case(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAST_CHAT_TEMPLATE", "BATCH_MODE"):
        monkeypatch.setenv(name, vector["env"].get(name, ""))
    given = vector["input"]
    told = given["tokenizer"]
    tokenizer = RecordedTokenizer(told["chat_template"]) if told else None
    prompts = Prompts(tokenizer, wants_fast_path=EngineSettings.load().wants_fast_template)
    wanted = vector["right_output" if vector["verdict"] in ("bug", "spec") else "output"]
    asked = req(given["user_prompt"], system_prompt=given["system_prompt"])
    assert prompts.render(asked) == wanted


def render_of(template: str) -> FastPath | None:
    return Prompts(RecordedTokenizer(template), wants_fast_path=True).fast_path


@pytest.mark.parametrize("template", [CHATML, QWEN_LIKE, CHATML + "<think>\n"])
def test_a_plain_template_is_proved(template: str) -> None:
    path = render_of(template)
    assert path is not None
    assert path.join("S", "U").startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU")


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace("{{m.content}}", "{{m.content | trim}}"),
        CHATML.replace("{{m.content}}", "{{m.content | upper}}"),
        CHATML.replace("{{m.content}}", "{{m.content | e}}"),
        CHATML.replace("{{m.content}}", "{{m.content}}{{m.content}}"),
        CHATML.replace("{{m.content}}", "{{m.content.split('</think>')[-1]}}"),
        "{{ strftime_now('%Y') }}" + CHATML,
        "{% if not messages[0].content %}none{% endif %}" + CHATML,
        "{{ raise_exception('no system turn') }}" + CHATML,
        "{% broken <|im_start|>assistant",
    ],
)
def test_a_template_that_does_more_is_not_proved(template: str) -> None:
    assert render_of(template) is None


def test_probes_that_swap_places_prove_nothing() -> None:
    assert prove_fast_path(lambda system, user: f"<{user}|{system}>") is None


def test_a_user_text_that_holds_the_probe_is_still_joined_right() -> None:
    path = prove_fast_path(lambda system, user: f"<s>{system}<u>{user}<a>")
    assert path is not None
    assert path.join("a-user-text-1", "a-system-prompt-0") == (
        "<s>a-user-text-1<u>a-system-prompt-0<a>"
    )


# --- with the real tokenizer of the packaged model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def real(folder: Path) -> Prompts:
    return Prompts.load(folder, trust_remote_code=False, wants_fast_path=False)


@pytest.fixture(scope="module")
def fast(folder: Path) -> Prompts:
    return Prompts.load(folder, trust_remote_code=False, wants_fast_path=True)


async def test_the_template_is_rendered_and_tokenised_once(real: Prompts) -> None:
    prompt = await real.build(req(" hi \n", system_prompt="Be brief."), 100)
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    # <|im_start|> is this model's begin-of-sequence token: there is one for each turn and none before.
    assert prompt.token_ids[0] == 1
    assert prompt.token_ids.count(1) == 3


@pytest.mark.parametrize("user", ["hi", "", "  x\n\ny  ", "系统 <b> {{ x }}", "a<|im_end|>b"])
@pytest.mark.parametrize("system", ["Be brief.", "", " padded \n"])
def test_the_fast_path_gives_the_same_text(
    real: Prompts, fast: Prompts, system: str, user: str
) -> None:
    assert fast.fast_path is not None
    asked = req(user, system_prompt=system)
    assert fast.render(asked) == real.render(asked)


def test_a_line_break_at_the_end_of_a_template_goes_the_same_way_on_both_paths(
    folder: Path,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = CHATML
    fast = Prompts(tokenizer, wants_fast_path=True)
    assert fast.fast_path is not None
    asked = req("hi", system_prompt="S")
    assert fast.render(asked) == Prompts(tokenizer, wants_fast_path=False).render(asked)


def test_without_a_system_prompt_the_template_has_its_own_say(real: Prompts, fast: Prompts) -> None:
    assert fast.render(req("hi")) == real.render(req("hi"))
    assert "SmolLM" in real.render(req("hi"))


def test_messages_are_rendered_as_they_are(real: Prompts) -> None:
    messages = (
        Message("system", "S"),
        Message("user", " one "),
        Message("assistant", "two"),
        Message("user", "three"),
    )
    text = real.render(req(messages=messages))
    assert text.count("<|im_start|>") == 5
    assert "user\n one <|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")


async def test_raw_text_is_not_templated(real: Prompts) -> None:
    prompt = await real.build(req("  Once upon", raw=True), 100)
    assert prompt.text == "  Once upon"
    assert 1 not in prompt.token_ids


async def test_a_long_text_is_tokenised_like_a_short_one(real: Prompts) -> None:
    words = "word " * 8_000
    prompt = await real.build(req(words, raw=True), 10_000)
    assert len(prompt.token_ids) == 8_001  # the blank at the end is one more


@pytest.mark.parametrize("extra", [-1, 0])
async def test_a_prompt_that_leaves_room_for_an_answer_is_taken(real: Prompts, extra: int) -> None:
    n_tokens = len((await real.build(req("hi"), 1000)).token_ids)
    assert len((await real.build(req("hi"), n_tokens + 1)).token_ids) == n_tokens
    with pytest.raises(PromptTooLong, match=rf"{n_tokens} tokens, at most {n_tokens + extra - 1} "):
        await real.build(req("hi"), n_tokens + extra)


async def test_arguments_of_the_template_are_passed_on_but_not_another_template(
    real: Prompts,
) -> None:
    asked = req("hi", chat_template_kwargs={"enable_thinking": False})
    assert (await real.build(asked, 100)).text
    for name in ("chat_template", "tokenize", "tools"):
        with pytest.raises(InvalidRequest, match=f"chat_template_kwargs: {name} "):
            real.render(req("hi", chat_template_kwargs={name: "{{ 7 * 7 }}"}))


async def test_an_empty_raw_prompt_is_refused(real: Prompts) -> None:
    with pytest.raises(InvalidRequest, match="prompt: is empty"):
        await real.build(req("", raw=True), 100)


def test_a_template_that_refuses_messages_names_them() -> None:
    class Refusing(RecordedTokenizer):
        def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
            raise ValueError("roles must alternate")

    prompts = Prompts(Refusing(CHATML), wants_fast_path=False)
    with pytest.raises(InvalidRequest, match=r"messages: .*roles must alternate"):
        prompts.render(req(messages=(Message("user", "a"), Message("user", "b"))))
    assert prompts.render(req("q", system_prompt="S")) == "S\n问题：q\n答案："
