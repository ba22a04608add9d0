"""Prompts: the proof of the fast path, token ids, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from shared.errors import EngineError, InvalidRequest, PromptTooLong, SettingsError
from shared.request import Delivery, Message, Req
from shared.sampling import SamplingParams
from tests.e2e.places import model_folder
from tests.vectors.prompts import RecordedTokenizer
from worker.chat_template import FastPath, prove_fast_path
from worker.prompt import Prompts, read_chat_template

CHATML = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
# Of the shape that models have which can think or not: unset, they do.
THINKING = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
# Looks at what users say, as those with tools do, and it makes no difference.
LOOKING = (
    """{%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.multi_step_tool and message.role == "user" and not(
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
"""
    + THINKING
)
UNTHINKING = "<think>\n\n</think>\n\n"
ROUTED = Delivery(route="short")
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


def render_of(template: str) -> FastPath | None:
    return Prompts(RecordedTokenizer(template), wants_fast_path=True).fast_path


@pytest.mark.parametrize("template", [CHATML, QWEN_LIKE, CHATML + "<think>\n", THINKING, LOOKING])
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
        CHATML.replace("{{m.content}}", "{{m.content | replace('xyzzy', '')}}"),
        CHATML + "{% if not messages[-1].content.endswith('/nothink') %}<think>{% endif %}",
        CHATML + "{% if 'xyzzy' in messages[-1].content %}<think>{% endif %}",
        CHATML + "{% if messages[0].content.startswith('xy' + 'zzy') %}<think>{% endif %}",
        CHATML + "{% set text = messages[-1].content %}{{ '!' if text == 'hi there' }}",
        CHATML + "{% if messages[-1].content | length > 100 %}<think>{% endif %}",
        CHATML + "{% if messages[-1]['content'].isupper() %}<think>{% endif %}",
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
def tokenizer(folder: Path) -> Any:
    """Read once: that takes longer than any test here."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def with_template(tokenizer: Any, template: str | None) -> Any:
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


@pytest.fixture(scope="module")
def real(folder: Path) -> Prompts:
    return Prompts.load(folder, trust_remote_code=False, wants_fast_path=False)


@pytest.fixture(scope="module")
def fast(tokenizer: Any) -> Prompts:
    return Prompts(tokenizer, wants_fast_path=True)


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
    tokenizer: Any,
) -> None:
    changed = with_template(tokenizer, CHATML)
    fast = Prompts(changed, wants_fast_path=True)
    assert fast.fast_path is not None
    asked = req("hi", system_prompt="S")
    assert fast.render(asked) == Prompts(changed, wants_fast_path=False).render(asked)


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


def test_arguments_that_the_template_chokes_on_are_refused_by_name(tokenizer: Any) -> None:
    template = "{{ raise_exception('no such mode') if mode is defined else 'ok' }}"
    prompts = Prompts(with_template(tokenizer, template), wants_fast_path=False)
    assert prompts.render(req("hi")) == "ok"
    with pytest.raises(InvalidRequest, match=r"chat_template_kwargs: .*no such mode"):
        prompts.render(req("hi", chat_template_kwargs={"mode": "x"}))


def test_a_model_without_a_template_is_told_of_once_and_gets_plain_text(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = Prompts(with_template(tokenizer, None), wants_fast_path=True)
    for _ in range(2):
        assert prompts.render(req("q", system_prompt="S")) == "S\n问题：q\n答案："
        assert prompts.render(req(messages=(Message("user", "q"),))) == "问题：q\n答案："
    (record,) = caplog.records
    assert "no chat template" in record.getMessage()


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"empty has no tokenizer that can be loaded") as caught:
        Prompts.load(tmp_path / "empty", trust_remote_code=False, wants_fast_path=False)
    assert "\n" not in str(caught.value)


# --- CHAT_TEMPLATE


def test_a_template_of_the_settings_stands_over_the_models_own(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("\ufeff<{{ messages[-1].content }}>", "utf-8")
    prompts = Prompts.load(
        folder, trust_remote_code=False, wants_fast_path=True, chat_template=str(file)
    )
    assert prompts.render(req("hi", system_prompt="S")) == "<hi>"
    assert prompts.render(req(messages=(Message("user", "yo"),))) == "<yo>"


def test_a_template_may_be_given_as_text_and_may_refuse_some_chats() -> None:
    template = "{{ raise_exception('a system turn is wanted') }}"
    assert read_chat_template(template) == template
    assert read_chat_template(None) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{% for m in messages %}", "does not compile: Unexpected end of template"),
        ("{{ m | shout }}", "does not compile: No filter named 'shout'"),
        ("chatml", "neither a Jinja template nor a file that can be read: 'chatml': No such file"),
        ("x" * 5000, "neither a Jinja template nor a file that can be read: "),
        (".", r"\. is no file"),
        ("plain.txt", "plain.txt holds no Jinja template"),
        ("latin.jinja", "latin.jinja is not UTF-8"),
        ("huge.jinja", "huge.jinja is larger than 1048576 bytes"),
        ("broken.jinja", r"does not compile: .*line 2"),
    ],
)
def test_a_template_that_cannot_be_used_stops_the_start(
    given: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("no markup")
    Path("latin.jinja").write_bytes(b"{{ '\xe9' }}")
    Path("huge.jinja").write_text("{{ x }}" * 150_000)
    Path("broken.jinja").write_text("\n{% endfor %}")
    with pytest.raises(SettingsError, match=f"(?i)^CHAT_TEMPLATE: {why}") as caught:
        read_chat_template(given)
    assert len(str(caught.value).splitlines()) == 1


# --- models that can think or not


@pytest.fixture(scope="module")
def thinking(tokenizer: Any) -> tuple[Prompts, Prompts]:
    """Rendered, and by the shortcut where there is one."""
    changed = with_template(tokenizer, THINKING)
    return Prompts(changed, wants_fast_path=False), Prompts(changed, wants_fast_path=True)


def test_the_first_seeds_face_goes_without_reasoning(thinking: tuple[Prompts, Prompts]) -> None:
    for prompts in thinking:
        text = prompts.render(req("hi", system_prompt="S", delivery=ROUTED))
        assert text == (
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            f"<|im_start|>assistant\n{UNTHINKING}"
        )


def test_every_other_request_has_the_templates_own_default(
    thinking: tuple[Prompts, Prompts],
) -> None:
    for prompts in thinking:
        for asked in (req("hi", system_prompt="S"), req(messages=(Message("user", "hi"),))):
            assert prompts.render(asked).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("delivery", [ROUTED, Delivery()])
def test_who_gives_the_switch_has_it(thinking: tuple[Prompts, Prompts], delivery: Delivery) -> None:
    for prompts in thinking:
        for is_on, end in ((True, "assistant\n"), (False, UNTHINKING)):
            arguments = {"enable_thinking": is_on}
            asked = req("hi", system_prompt="S", delivery=delivery, chat_template_kwargs=arguments)
            assert prompts.render(asked).endswith(end)


@pytest.mark.parametrize("user", ["hi", "", "a <b> {{ x }}", "<think>x</think>", "/think 系统"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"delivery": ROUTED},
        {"delivery": ROUTED, "chat_template_kwargs": {"other": 1}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": 0}},
        {"chat_template_kwargs": {"enable_thinking": None}},
    ],
    ids=str,
)
def test_the_shortcut_gives_the_same_with_and_without_reasoning(
    thinking: tuple[Prompts, Prompts], user: str, fields: dict[str, Any]
) -> None:
    rendered, joined = thinking
    assert joined.fast_path is not None
    asked = req(user, system_prompt=" S \n", **fields)
    assert joined.render(asked) == rendered.render(asked)


def test_the_shortcut_spares_the_template_for_requests_without_reasoning() -> None:
    class Counting(RecordedTokenizer):
        calls = 0

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
            self.calls += 1
            return super().apply_chat_template(*args, **kwargs)

    tokenizer = Counting(THINKING)
    prompts = Prompts(tokenizer, wants_fast_path=True)
    assert prompts.render(req("hi", system_prompt="S", delivery=ROUTED)).endswith(UNTHINKING)
    prompts.render(req("hi", system_prompt="S"))
    assert tokenizer.calls == 0


@pytest.mark.parametrize(
    ("template", "given"),
    [
        (CHATML, {}),
        (THINKING, {"enable_thinking": False}),
        ({"default": THINKING, "tool_use": CHATML}, {"enable_thinking": False}),
        ({"default": CHATML, "tool_use": THINKING}, {}),
    ],
    ids=["plain", "thinking", "default of several", "another of several"],
)
def test_the_switch_is_given_to_templates_that_know_it_alone(
    template: Any, given: dict[str, Any]
) -> None:
    class Watched(RecordedTokenizer):
        seen: dict[str, Any] | None = None

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
            self.seen = {k: v for k, v in kwargs.items() if k == "enable_thinking"}
            return super().apply_chat_template(*args, **kwargs)

    tokenizer = Watched(template)
    Prompts(tokenizer, wants_fast_path=False).render(req("hi", delivery=ROUTED))
    assert tokenizer.seen == given


async def test_reasoning_is_counted_with_the_models_own_tokenizer(
    thinking: tuple[Prompts, Prompts],
) -> None:
    prompts, _ = thinking
    prompt = await prompts.build(req("hi"), 1000)
    answer = prompts.thinking.split("<think>\nfour words are here\n</think>\n\nYes.", prompt.text)
    assert (answer.text, answer.reasoning) == ("Yes.", "four words are here")
    assert prompts.thinking.tokens(answer, 100) == 12


async def test_a_template_that_opens_the_block_itself_opens_none_where_it_is_switched_off(
    tokenizer: Any,
) -> None:
    opening = THINKING.replace(
        "    {%- endif %}\n{%- endif %}\n",
        "    {%- else %}\n        {{- '<think>\\n' }}\n    {%- endif %}\n{%- endif %}\n",
    )
    prompts = Prompts(with_template(tokenizer, opening), wants_fast_path=True)
    for delivery, text, reasoning in ((Delivery(), "yes", "hm"), (ROUTED, "hm</think>yes", None)):
        asked = req("hi", system_prompt="S", delivery=delivery)
        prompt = await prompts.build(asked, 1000)
        found = prompts.thinking.split("hm</think>yes", prompt.text)
        assert (found.text, found.reasoning) == (text, reasoning)
