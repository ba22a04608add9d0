"""Placeholders: found, renamed and filled in one pass, with everything else left as it stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.placeholders import awaited_by, filled, names_in, renamed, with_answers
from shared.request import Message, Req
from shared.sampling import SamplingParams

PARAMS = SamplingParams(max_tokens=8)
TEXTS = st.text("ab.{}tex ", max_size=40)


def req(**fields: object) -> Req:
    return Req(id="q.0-z", sampling=PARAMS, bucket_key="b", digest="d", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{{a.text}}", ["a"]),
        ("say {{a.text}} and {{q.0-b.3.text}}.", ["a", "q.0-b.3"]),
        ("{{a.text.text}}", ["a.text"]),
        ("{{{a.text}}}", ["a"]),
        ("{{ a.text }} {{a}} {{a.txt}} {a.text} {{.text}} {{a b.text}}", []),
    ],
)
def test_what_is_a_placeholder(text: str, names: list[str]) -> None:
    assert list(names_in(text)) == names


def test_what_is_put_in_is_not_looked_at_again() -> None:
    answers = {"a": "{{b.text}}", "b": "{{a.text}} \\1 \\g<0>"}
    assert filled("{{a.text}}|{{b.text}}|{{c.text}}", answers) == (
        "{{b.text}}|{{a.text}} \\1 \\g<0>|{{c.text}}"
    )


def test_names_become_other_names_at_once() -> None:
    assert renamed("{{a.text}}{{b.text}}{{c.text}}", {"a": "b", "b": "a"}) == (
        "{{b.text}}{{a.text}}{{c.text}}"
    )


@given(TEXTS, TEXTS)
def test_filling_is_cutting_at_the_placeholders_and_joining(before: str, after: str) -> None:
    text = f"{before}{{{{id.text}}}}{after}"
    if list(names_in(text)) == ["id"]:
        assert filled(text, {"id": "X"}) == f"{before}X{after}"


def test_answers_are_wanted_only_for_what_is_repeated() -> None:
    messages = (Message("user", "as {{q.0-b.text}} says"), Message("assistant", "{{q.0-x.text}}"))
    asked = req(messages=messages, depends_on=("q.0-a", "q.0-b"))
    assert awaited_by(asked) == ["q.0-b"]
    assert awaited_by(req(prompt="p", system_prompt="{{q.0-a.text}}", depends_on=("q.0-a",))) == [
        "q.0-a"
    ]


def test_prompt_messages_and_system_prompt_are_filled() -> None:
    answers = {"q.0-a": "A"}
    text = "<{{q.0-a.text}}>"
    whole = with_answers(req(prompt=text, system_prompt=text), answers)
    assert (whole.prompt, whole.system_prompt, whole.messages) == ("<A>", "<A>", None)
    chat = with_answers(req(messages=(Message("user", text, "n"),)), answers)
    assert (chat.messages, chat.prompt) == ((Message("user", "<A>", "n"),), None)
