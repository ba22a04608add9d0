"""Turns a request into the token ids that the model sees: chat template, fallback, length check.

Knows no engine and no queue. Templates render a chat as text; that text is tokenised without the
tokenizer's own special tokens, since a template writes them itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shared.errors import InvalidRequest, PromptTooLong
from shared.request import Message, Req
from worker.engines.base import EnginePrompt

log = logging.getLogger(__name__)

# Longer texts are tokenised in a thread: a megabyte takes over half a second.
LONG_CHARS = 32_768
SMELL = ("<|im_start|>", "assistant")
# Arguments of apply_chat_template that are ours to give; another template would be code from outside.
RESERVED = frozenset(
    {
        *("conversation", "messages", "chat_template", "tools", "documents", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        *("tokenizer_kwargs", "processor_kwargs"),
    }
)


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here. `chat_template` may be a list of named ones."""

    chat_template: Any
    bos_token: str | None

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **kwargs: Any,
    ) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


@dataclass(frozen=True)
class FastPath:
    """A template that was proved to be no more than three fixed pieces around system and user text."""

    prefix: str
    infix: str
    suffix: str

    def join(self, system: str, user: str) -> str:
        return f"{self.prefix}{system}{self.infix}{user}{self.suffix}"


Render = Callable[[str, str], str]
PROBE = ("a-system-prompt-0", "a-user-text-1")
# What templates are known to treat specially: nothing, blanks, markup, braces, blocks, other scripts.
PROOFS = (
    ("", "q"),
    (" padded \n", ""),
    ("a <b> & 'c' \"d\" {{ e }} {% f %}", "line 1\n\n\tline 2"),
    ("系统提示。", "<think>\nx\n</think>\n\n<tool_response>y</tool_response>"),
)


def prove_fast_path(render: Render) -> FastPath | None:
    """The three pieces, if joining them gives what `render` gives for every proof; else None."""
    system, user = PROBE
    try:
        text = render(system, user)
        if text.count(system) != 1 or text.count(user) != 1:
            return None
        prefix, _, rest = text.partition(system)
        infix, found, suffix = rest.partition(user)
        path = FastPath(prefix, infix, suffix)
        if found and all(render(s, u) == path.join(s, u) for s, u in PROOFS):
            return path
    except Exception:  # templates raise whatever they like: then there is no shortcut
        log.debug("the chat template refused a probe", exc_info=True)
    return None


def fast_path_of(tokenizer: Tokenizer) -> FastPath | None:
    """Proved on the template's own text; a template that looks at the clock is never proved."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or not all(mark in template for mark in SMELL):
        return None
    if "strftime_now" in template:
        return None
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import render_jinja_template

    special = getattr(tokenizer, "special_tokens_map", {})
    # transformers drops a line break at a template's very end, so the shortcut must where it stands for
    # transformers; elsewhere the template holds as it is written.
    is_cut = isinstance(tokenizer, PreTrainedTokenizerBase)
    end = "\n" if template.endswith("\n") and template[-3:-1] != "%}" and not is_cut else ""

    def render(system: str, user: str) -> str:
        turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        rendered, _ = render_jinja_template(
            conversations=[turns], chat_template=template, add_generation_prompt=True, **special
        )
        return f"{rendered[0]}{end}"

    return prove_fast_path(render)


class Prompts:
    """Renders and tokenises for one model. `tokenizer` None: plain text only, as the first seed allows."""

    def __init__(self, tokenizer: Tokenizer | None, *, wants_fast_path: bool) -> None:
        self._tokenizer = tokenizer
        self.fast_path = (
            fast_path_of(tokenizer) if wants_fast_path and tokenizer is not None else None
        )
        self._has_warned = False

    @classmethod
    def load(cls, model_dir: Path, *, trust_remote_code: bool, wants_fast_path: bool) -> Prompts:
        """Blocks for about a second, and for some more where transformers is not imported yet."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(
            str(model_dir), trust_remote_code=trust_remote_code, local_files_only=True
        )
        return cls(tokenizer, wants_fast_path=wants_fast_path)

    async def build(self, req: Req, max_model_len: int) -> EnginePrompt:
        """Raises PromptTooLong with the numbers, InvalidRequest where the template refuses the chat."""
        text, is_rendered = self._text(req)
        if len(text) < LONG_CHARS:
            ids = self._encode(text, is_rendered)
        else:
            ids = await asyncio.to_thread(self._encode, text, is_rendered)
        param = "messages" if req.messages is not None else "prompt"
        if not ids:
            raise InvalidRequest(
                f"{param}: is empty, so there is nothing to go on from", param=param
            )
        limit = max_model_len - 1
        if len(ids) > limit:
            raise PromptTooLong(
                f"{param}: has {len(ids)} tokens, at most {limit} fit "
                f"(the model takes {max_model_len} of prompt and answer together)",
                param=param,
            )
        return EnginePrompt(req.id, ids, text)

    def render(self, req: Req) -> str:
        """The text that is tokenised."""
        return self._text(req)[0]

    def _text(self, req: Req) -> tuple[str, bool]:
        """The text, and whether a template made it, special tokens included."""
        if req.messages is not None:
            return self._chat(req.messages, req.chat_template_kwargs)
        if req.raw:
            return req.prompt or "", False
        user = (req.prompt or "").strip()
        if req.system_prompt is not None and self.fast_path and not req.chat_template_kwargs:
            return self.fast_path.join(req.system_prompt, user), True
        return self._single(req.system_prompt, user, req.chat_template_kwargs)

    def _single(self, system: str | None, user: str, kwargs: dict[str, Any]) -> tuple[str, bool]:
        """One user turn. A template that fails on it is passed over, as the first seed does."""
        turns = [] if system is None else [{"role": "system", "content": system}]
        turns.append({"role": "user", "content": user})
        if self._tokenizer is not None:
            try:
                return self._apply(turns, kwargs), True
            except InvalidRequest:
                raise
            except Exception as error:
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("no chat template, so prompts are plain text: %s", error)
        return plain_text(turns), False

    def _chat(self, messages: Sequence[Message], kwargs: dict[str, Any]) -> tuple[str, bool]:
        turns = [
            {"role": m.role, "content": m.content, **({"name": m.name} if m.name else {})}
            for m in messages
        ]
        if self._tokenizer is None or not self._tokenizer.chat_template:
            return plain_text(turns), False
        try:
            return self._apply(turns, kwargs), True
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error

    def _apply(self, turns: Sequence[dict[str, str]], kwargs: dict[str, Any]) -> str:
        assert self._tokenizer is not None
        ours = sorted(RESERVED & kwargs.keys())
        if ours:
            raise InvalidRequest(
                f"chat_template_kwargs: {', '.join(ours)} cannot be given",
                param="chat_template_kwargs",
            )
        return self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **kwargs
        )

    def _encode(self, text: str, is_rendered: bool) -> tuple[int, ...]:
        """Text without a template gets the tokenizer's own special tokens, unless it begins with them."""
        if self._tokenizer is None:
            raise InvalidRequest("prompt: this worker has no tokenizer", param="prompt")
        bos = self._tokenizer.bos_token
        has_own = is_rendered or (bool(bos) and text.startswith(str(bos)))
        return tuple(self._tokenizer.encode(text, add_special_tokens=not has_own))


def plain_text(turns: Sequence[dict[str, str]]) -> str:
    """Without a template: system text, then questions and answers, ending where the answer begins."""
    labels = {"user": "问题：", "assistant": "答案："}
    lines = [labels.get(turn["role"], "") + turn["content"] for turn in turns]
    return "\n".join((*lines, labels["assistant"]))
