"""How a prompt is put together. The tokenizer's method does not render its template, so one tells which was used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.request import Req
from shared.sampling import SamplingParams
from tests.vectors.comparison import Differences, exact
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.prompt import Prompts
from worker.settings import EngineSettings

# Beside the output: how the tokenizer was asked to render.
CALLS = "template_calls"


class RecordedTokenizer:
    """Renders `[role]content` for each message; `rendering` is the recording's own word for what it does.
    `asked` are the arguments of each time that it was asked to.
    """

    bos_token: str | None = None

    def __init__(self, chat_template: Any, rendering: str = "renders") -> None:
        self.chat_template = chat_template
        self.asked: list[dict[str, Any]] = []
        self._raises = "raise" in rendering

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **kwargs: Any,
    ) -> str:
        told = {"messages": list(conversation), "tokenize": tokenize, **kwargs}
        self.asked.append({**told, "add_generation_prompt": add_generation_prompt})
        if self._raises:
            raise ValueError("the template cannot be rendered")
        assert not tokenize
        text = "".join(f"[{turn['role']}]{turn['content']}" for turn in conversation)
        return text + "[assistant]" * add_generation_prompt

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        raise AssertionError("the recorded cases stop at the text")


def format_as_chat(vector: Vector, around: Surroundings) -> Differences:
    given = vector.input
    told = given["tokenizer"]
    tokenizer = (
        RecordedTokenizer(told.get("chat_template"), told.get("apply_chat_template", ""))
        if told
        else None
    )
    prompts = Prompts(tokenizer, wants_fast_path=EngineSettings.load().wants_fast_template)
    params = SamplingParams(max_tokens=1)
    asked = Req(
        id="recorded",
        sampling=params,
        bucket_key=params.bucket_key,
        digest="",
        prompt=given["user_prompt"],
        system_prompt=given["system_prompt"],
    )
    wrong = exact(vector.wanted, prompts.render(asked))
    if (
        CALLS in vector.extra and not vector.must_be_right
    ):  # else they are those of the wrong output
        wrong += exact(vector.extra[CALLS], tokenizer.asked if tokenizer else [], CALLS)
    return wrong
