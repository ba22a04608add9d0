"""Turns a request into the token ids that the model sees: chat template, fallback, length check.

Knows no engine and no queue. Templates render a chat as text; that text is tokenised without the
tokenizer's own special tokens, since a template writes them itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shared.errors import EngineError, InvalidRequest, PromptTooLong, SettingsError
from shared.request import Message, Req
from worker.chat_template import PROBE, FastPath, prove_fast_path, template_text, words_of
from worker.engines.base import EnginePrompt
from worker.think import PLAIN, Tags, Thinking

log = logging.getLogger(__name__)

# Longer texts are tokenised in a thread: a megabyte takes over half a second.
LONG_CHARS = 32_768
SMELL = ("<|im_start|>", "assistant")
# By this name templates of models that can think or not are told which; unset, most think.
ENABLE_THINKING = "enable_thinking"
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


def fast_path_of(tokenizer: Tokenizer, arguments: Mapping[str, Any]) -> FastPath | None:
    """Proved on the template's own text with these arguments; one that looks at the clock is never proved."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or not all(mark in template for mark in SMELL):
        return None
    if "strftime_now" in template:
        return None
    try:
        words = words_of(template)
    except Exception:  # what cannot be read says nothing
        words = None
    if words is None:
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
            conversations=[turns],
            chat_template=template,
            add_generation_prompt=True,
            **{**special, **arguments},
        )
        return f"{rendered[0]}{end}"

    return prove_fast_path(render, words)


def read_chat_template(given: str | None) -> str | None:
    """CHAT_TEMPLATE as text: it is a template, or names a file that holds one. Loads transformers.

    Raises SettingsError that says in one line what is wrong with it.
    """
    if given is None:
        return None
    text = template_text(given)
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        turns = [{"role": "user", "content": PROBE[1]}]
        render_jinja_template(conversations=[turns], chat_template=text, add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise SettingsError(
            f"CHAT_TEMPLATE: does not compile: {error.message} (line {error.lineno})"
        ) from None
    except Exception:  # it may well have reasons to refuse this chat
        log.debug("CHAT_TEMPLATE refused a probe", exc_info=True)
    return text


class Prompts:
    """Renders and tokenises for one model. `tokenizer` None: plain text only, as the first seed allows.

    `tags` are what the model writes around its reasoning.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, *, wants_fast_path: bool, tags: Tags = PLAIN
    ) -> None:
        self._tokenizer = tokenizer
        self.thinking = Thinking(tags, self._count)
        template = tokenizer.chat_template if tokenizer is not None else None
        if isinstance(template, dict):  # several by name
            template = template.get("default")
        self._has_template = bool(template)
        self._has_warned = not self._has_template
        if not self._has_template:
            log.warning(
                "the model has no chat template: chats are plain text (or set CHAT_TEMPLATE)"
            )
        self._can_think = isinstance(template, str) and bool(
            re.search(rf"\b{ENABLE_THINKING}\b", template)
        )
        # One for each set of arguments that many requests share.
        self._fast_paths: dict[bool | None, FastPath] = {}
        if wants_fast_path and tokenizer is not None:
            for switch in (None, False, True) if self._can_think else (None,):
                arguments = {} if switch is None else {ENABLE_THINKING: switch}
                if path := fast_path_of(tokenizer, arguments):
                    self._fast_paths[switch] = path

    @property
    def fast_path(self) -> FastPath | None:
        """For requests without arguments of the template."""
        return self._fast_paths.get(None)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        trust_remote_code: bool,
        wants_fast_path: bool,
        chat_template: str | None = None,
        tags: Tags = PLAIN,
    ) -> Prompts:
        """Blocks for about a second, and for some more where transformers is not imported yet.

        `chat_template` is CHAT_TEMPLATE as it was given, and stands over the model's own. Raises
        SettingsError for it, EngineError where the folder has no tokenizer.
        """
        from transformers import AutoTokenizer

        template = read_chat_template(chat_template)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(model_dir), trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:
            # Engines take token ids, so without one nothing could be asked.
            why = " ".join(str(error).split())[:300]
            raise EngineError(f"{model_dir} has no tokenizer that can be loaded: {why}") from error
        if template is not None:
            tokenizer.chat_template = template
        return cls(tokenizer, wants_fast_path=wants_fast_path, tags=tags)

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
        if req.raw:
            return req.prompt or "", False
        arguments = self._arguments(req)
        if req.messages is not None:
            return self._chat(req.messages, arguments)
        user = (req.prompt or "").strip()
        path = self._fast_path(arguments)
        if path is not None and req.system_prompt is not None:
            return path.join(req.system_prompt, user), True
        return self._single(req.system_prompt, user, arguments, bool(req.chat_template_kwargs))

    def _arguments(self, req: Req) -> dict[str, Any]:
        """What the template is given. The first seed's budgets are short: reasoning would eat them up, so its
        requests, which are those that were routed, go without where the template leaves the choice.
        """
        given = req.chat_template_kwargs
        if self._can_think and req.delivery.route is not None and ENABLE_THINKING not in given:
            return {**given, ENABLE_THINKING: False}
        return given

    def _fast_path(self, arguments: Mapping[str, Any]) -> FastPath | None:
        """The one that was proved for exactly these."""
        if not arguments:
            return self._fast_paths.get(None)
        switch = arguments.get(ENABLE_THINKING)
        if len(arguments) == 1 and isinstance(switch, bool):  # to a template, 0 is not False
            return self._fast_paths.get(switch)
        return None

    def _single(
        self, system: str | None, user: str, arguments: dict[str, Any], has_own: bool
    ) -> tuple[str, bool]:
        """One user turn. A template that fails on it is passed over, as the first seed does, unless the
        request's own arguments may be to blame.
        """
        turns = [] if system is None else [{"role": "system", "content": system}]
        turns.append({"role": "user", "content": user})
        if self._tokenizer is not None:
            try:
                if text := self._apply(turns, arguments):
                    return text, True
            except InvalidRequest:
                raise
            except Exception as error:
                if has_own and self._has_template:
                    raise _refused("chat_template_kwargs", error) from error
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("the chat template fails, so prompts are plain text: %s", error)
        return plain_text(turns), False

    def _chat(self, messages: Sequence[Message], arguments: dict[str, Any]) -> tuple[str, bool]:
        turns = [
            {"role": m.role, "content": m.content, **({"name": m.name} if m.name else {})}
            for m in messages
        ]
        if not self._has_template:
            return plain_text(turns), False
        try:
            return self._apply(turns, arguments), True
        except InvalidRequest:
            raise
        except Exception as error:
            raise _refused("messages", error) from error

    def _apply(self, turns: Sequence[dict[str, str]], arguments: dict[str, Any]) -> str:
        assert self._tokenizer is not None
        ours = sorted(RESERVED & arguments.keys())
        if ours:
            raise InvalidRequest(
                f"chat_template_kwargs: {', '.join(ours)} cannot be given",
                param="chat_template_kwargs",
            )
        return self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **arguments
        )

    def _count(self, text: str) -> int:
        """Tokens of a piece of an answer."""
        if self._tokenizer is None:
            return 0
        return len(self._tokenizer.encode(text, add_special_tokens=False))

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


def _refused(param: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"{param}: the model's chat template refuses them: {error}", param=param)
