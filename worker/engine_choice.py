"""Which engines to try and in what order: one pure function of settings and of what the machine can do."""

from __future__ import annotations

import msgspec

from shared.errors import SettingsError
from worker.settings import EngineSettings

ASYNC, OFFLINE, TRANSFORMERS = "vllm_async", "vllm_offline", "transformers"


class Facts(msgspec.Struct, frozen=True):
    """What this machine can do, as far as the choice of an engine depends on it."""

    has_vllm: bool
    has_compiler: bool
    """A C compiler is there, or none is needed: vLLM on a CPU runs without one in eager mode."""
    has_gpu: bool


def wants_vllm(settings: EngineSettings, facts: Facts) -> bool:
    """The first seed's decision, with FORCE_VLLM lifting the compiler's veto alone."""
    if not facts.has_vllm:
        return False
    if not facts.has_compiler and not settings.force_vllm:
        return False
    return facts.has_gpu if settings.use_vllm is None else settings.use_vllm


def engines_to_try(settings: EngineSettings, facts: Facts) -> list[str]:
    """In order; the table in `docs/configuration.md` says the same.

    A named engine is the only one. Where vLLM is forced, nothing comes after it, and it raises
    SettingsError that it is not installed. Batch mode puts the offline engine first.
    """
    if settings.engine is not None:
        return [settings.engine]
    if settings.force_vllm and settings.use_vllm is not False and not facts.has_vllm:
        raise SettingsError("FORCE_VLLM: vLLM is not installed here")
    if not wants_vllm(settings, facts):
        return [TRANSFORMERS]
    is_offline = settings.batch_mode and settings.vllm_batch_use_llm
    engines = [OFFLINE, ASYNC] if is_offline else [ASYNC]
    return engines if settings.force_vllm else [*engines, TRANSFORMERS]
