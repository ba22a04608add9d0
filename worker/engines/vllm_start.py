"""What vLLM's engines share at their start and their end: a first look at the arguments, the processes below
us, and the words for why an engine did not start or has died. Knows no request.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from shared.sampling import SamplingParams
from worker.engines.base import Capabilities, EngineDead, EngineError
from worker.engines.children import Children
from worker.engines.vllm_log import ErrorLog
from worker.engines.vllm_terms import words
from worker.settings import EngineSettings

CLOSE_S = 1.0  # nothing in an engine is worth waiting for; left alone it takes up to 8 s
# Settings whose values vLLM checks itself, some late and without their name.
CHECKED_LATE = (
    "dtype",
    "vllm_quantization",
    "vllm_load_format",
    "vllm_kv_cache_dtype",
    "kv_cache_dtype",
)


# Of both: they have the same core and the same words. `echo` is the worker's own work.
CAPABILITIES = Capabilities(
    fields=frozenset(SamplingParams.__struct_fields__) - {"echo"}, can_abort=True, can_stream=True
)


class Launch:
    """One engine, from `prepare` to `end`."""

    def __init__(self, settings: EngineSettings, arguments: dict[str, Any]) -> None:
        self._settings = settings
        self._arguments = arguments
        self._children = Children()
        self._errors = ErrorLog()

    @property
    def slots(self) -> int:
        """How many requests run at once."""
        return min(int(self._arguments["max_num_seqs"]), self._settings.batch_concurrency)

    def prepare(self) -> dict[str, Any]:
        """The arguments to build the engine with. Blocks for a second: vLLM is imported.

        Raises what vLLM would say half a minute later, in a process of its own.
        """
        if "load_format" in self._arguments:
            check_load_format(self._arguments)
        self._children.look()
        return {**self._arguments, "logging_config": self._errors.config()}

    def began(self) -> None:
        """The engine is there. Its core's own children are nobody's once the core has died, so look now."""
        self._errors.forget()
        self._children.look()

    def refused(self, error: Exception) -> EngineError:
        """Why there is no engine. To be asked before `end`, which takes the processes' own words away."""
        module = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        if module.partition(".")[0] == "vllm":
            return EngineError(
                f"vLLM cannot be loaded here ({error}); where it has no build, as on macOS, "
                "ENGINE=transformers serves"
            )
        cause = self._errors.cause() or words(error)
        return EngineError(f"vLLM did not start: {cause}{self._hint(cause)}")

    def has_lost_one(self) -> bool:
        """Whether a process below us has ended that was there at some look since `prepare`."""
        self._children.look()
        return self._children.has_lost_one()

    def dead(self, error: BaseException) -> EngineDead:
        return EngineDead(f"vLLM's engine died: {self._errors.cause() or words(error)}")

    async def end(self) -> None:
        """Once the engine is shut down: no process of it is left, hung or not."""
        await asyncio.to_thread(self._children.end)
        self._errors.close()

    def look(self) -> None:
        """Before the engine is shut down: whom its processes leave behind could not be found later."""
        self._children.look()

    def _hint(self, cause: str) -> str:
        """Which settings hold a value that the error speaks of."""
        values = {name: getattr(self._settings, name) for name in CHECKED_LATE}
        named = [
            f"{name.upper()}={value}"
            for name, value in values.items()
            if value is not None and re.search(rf"\b{re.escape(value)}\b", cause)
        ]
        return f" (check {', '.join(named)})" if named else ""


def check_load_format(arguments: dict[str, Any]) -> None:
    """Raises vLLM's own ValueError where it has no such format, or not with what else is asked for."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.model_loader import get_model_loader

    get_model_loader(AsyncEngineArgs(**arguments).create_load_config())
