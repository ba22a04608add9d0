"""From settings to a started engine: the environment, the facts, the arguments, and the ladder of tries."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.worker_info import StartStep
from worker.engine_choice import Facts, engines_to_try
from worker.engines import make
from worker.engines.base import Engine
from worker.engines.devices import torch_device
from worker.engines.simulated import SimulatedTokenizer
from worker.engines.vllm_args import engine_arguments, known_arguments, shown
from worker.environment import (
    OFFLINE,
    engine_environment,
    for_device,
    has_metax_device,
    openmp_library,
    write_environment,
)
from worker.generate import Prompts
from worker.ladder import SetupFailed, climb, step_of
from worker.prompt import Prompts as ModelPrompts
from worker.repairs import Arguments, Machine
from worker.settings import EngineSettings, inherited
from worker.think import Tags

log = logging.getLogger(__name__)
SIMULATED, VLLM = "simulated", "vllm"
# What the first seed honours on these devices alone.
METAX_ALONE = ("default_max_model_len", "enable_chunked_prefill", "vllm_compilation_config")


@dataclass(frozen=True)
class Started:
    engine: Engine
    prompts: Prompts
    report: tuple[StartStep, ...]


def find_facts() -> Facts:
    """Loads torch, where there is one."""
    has_vllm = importlib.util.find_spec("vllm") is not None
    try:
        gpu = not torch_device().is_cpu
    except ImportError:
        gpu = False
    compilers = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return Facts(has_vllm=has_vllm, has_compiler=compilers or not gpu, has_gpu=gpu)


Warm = Callable[["Started"], Awaitable[None]]


async def _cold(started: Started) -> None:
    """Serves as it is."""


async def start(
    settings: EngineSettings,
    model_dir: Path | None,
    on_repair: Callable[[str], None] = lambda name: None,
    warm: Warm = _cold,
) -> Started:
    """The first engine that starts and comes through `warm`. Raises SetupFailed with one line that says why
    none did, SettingsError where a setting is at fault.

    The model is there, so from here on nothing is fetched. `on_repair` is told each repair by name.
    """
    has_metax = has_metax_device()
    settings = for_device(settings, has_metax)
    changes = engine_environment(
        settings, inherited(), openmp=openmp_library(), has_metax=has_metax
    )
    write_environment({**changes, **OFFLINE})
    facts = Facts(has_vllm=False, has_compiler=True, has_gpu=False)
    if settings.engine is None:
        facts = await asyncio.to_thread(find_facts)
        log.info("%s", _words(facts, has_metax))
        if not facts.has_vllm and settings.use_vllm is not False:
            log.warning("vLLM is not installed here")
    if not has_metax:
        for name in METAX_ALONE:
            if name in settings.model_fields_set:
                log.warning("%s has an effect on MetaX devices only", name.upper())
    kinds = engines_to_try(settings, facts)
    report: list[StartStep] = []
    # Before the engines, which take a minute: none would fare better with a folder that is at fault here.
    prompts = await _load_prompts(kinds, settings, model_dir, report)
    arguments: Arguments = {}
    if model_dir is not None and any(kind.startswith(VLLM) for kind in kinds):
        arguments = await asyncio.to_thread(_arguments, settings, model_dir, has_metax, report)

    async def construct(kind: str, arguments: Arguments) -> Engine:
        engine = make(kind, settings, model_dir, dict(arguments))
        try:
            await engine.start()
            # Some only die at their first step; another engine may serve then.
            await warm(Started(engine, prompts, ()))
        except BaseException:
            await engine.close()
            raise
        return engine

    machine = Machine(has_metax, settings.safe_max_model_len, _own_length(model_dir))
    brought = await climb(kinds, arguments, construct, machine, report, on_repair)
    if settings.engine_args and not brought.kind.startswith(VLLM):
        log.warning("ENGINE_ARGS has an effect on vLLM only; %s runs without", brought.kind)
    return Started(brought.engine, prompts, tuple(report))


async def _load_prompts(
    kinds: Sequence[str],
    settings: EngineSettings,
    model_dir: Path | None,
    report: list[StartStep],
) -> Prompts:
    began = time.monotonic()
    tags = Tags(*settings.think_tags)
    if model_dir is None or kinds == [SIMULATED]:
        return ModelPrompts(SimulatedTokenizer(), wants_fast_path=False, tags=tags)
    try:
        prompts = await asyncio.to_thread(
            ModelPrompts.load,
            model_dir,
            trust_remote_code=settings.trust_remote_code,
            wants_fast_path=settings.wants_fast_template,
            chat_template=settings.chat_template,
            tags=tags,
        )
    except SettingsError:
        raise
    except Exception as error:
        report.append(step_of("tokenizer", began, error))
        raise SetupFailed(f"the tokenizer: {report[-1].error}", report) from error
    report.append(step_of("tokenizer", began))
    return prompts


def _own_length(model_dir: Path | None) -> int | None:
    """What the model's configuration says of its length."""
    if model_dir is None:
        return None
    try:
        config = json.loads((model_dir / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return found if type(found) is int and found > 0 else None


def _words(facts: Facts, has_metax: bool) -> str:
    has = {True: "yes", False: "no"}
    return (
        f"vLLM installed: {has[facts.has_vllm]}; GPU: {has[facts.has_gpu]}; "
        f"C compiler, or none needed: {has[facts.has_compiler]}; MetaX device: {has[has_metax]}"
    )


def _arguments(
    settings: EngineSettings, model_dir: Path, has_metax: bool, report: list[StartStep]
) -> dict[str, Any]:
    """For vLLM; what this one does not have is left out, told, and noted in the report. Loads torch and vLLM."""
    wanted = engine_arguments(settings, model_dir, torch_device(), has_metax=has_metax)
    try:
        arguments, dropped = known_arguments(wanted, settings.engine_args)
    except ImportError as error:
        # The engine says why when it is made, and whether another may follow is the ladder's.
        log.warning("vLLM cannot be imported: %s", error)
        return wanted
    for name in dropped:
        log.warning("this vLLM has no argument %s; it is left out", name)
        report.append(StartStep(f"left out: {name}", 0.0))
    for name, value in shown(arguments).items():
        log.info("vLLM: %s=%r", name, value)
    return arguments
