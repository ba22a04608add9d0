"""Which engines are tried, in which order; the recorded choices of the first seed are among the vectors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import SettingsError
from tests.docs import pages
from worker.engine_choice import Facts, engines_to_try
from worker.settings import EngineSettings

ABLE = Facts(has_vllm=True, has_compiler=True, has_gpu=True)
NO_VLLM = Facts(has_vllm=False, has_compiler=True, has_gpu=False)


@pytest.mark.parametrize(
    ("given", "facts", "wanted"),
    [
        ({}, ABLE, ["vllm_async", "transformers"]),
        ({"force_vllm": True}, ABLE, ["vllm_async"]),
        ({"use_vllm": False}, ABLE, ["transformers"]),
        ({"use_vllm": False, "force_vllm": True}, ABLE, ["transformers"]),
        ({}, NO_VLLM, ["transformers"]),
        ({"engine": "vllm_async"}, NO_VLLM, ["vllm_async"]),
        ({"engine": "transformers", "force_vllm": True}, ABLE, ["transformers"]),
        ({"engine": "simulated"}, NO_VLLM, ["simulated"]),
        ({"batch_mode": True}, ABLE, ["vllm_offline", "vllm_async", "transformers"]),
        ({"batch_mode": True, "force_vllm": True}, ABLE, ["vllm_offline", "vllm_async"]),
        ({"batch_mode": True, "vllm_batch_use_llm": False}, ABLE, ["vllm_async", "transformers"]),
        ({"batch_mode": True, "use_vllm": False}, ABLE, ["transformers"]),
        ({"batch_mode": True}, NO_VLLM, ["transformers"]),
        ({"vllm_batch_use_llm": True}, ABLE, ["vllm_async", "transformers"]),
        ({"batch_mode": True, "engine": "vllm_async"}, ABLE, ["vllm_async"]),
        ({"batch_mode": True, "engine": "vllm_offline"}, NO_VLLM, ["vllm_offline"]),
    ],
)
def test_the_order_of_engines(given: dict[str, Any], facts: Facts, wanted: list[str]) -> None:
    assert engines_to_try(EngineSettings.load(**given), facts) == wanted


def test_forced_vllm_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="FORCE_VLLM: vLLM is not installed"):
        engines_to_try(EngineSettings.load(force_vllm=True), NO_VLLM)


Holds = Callable[[EngineSettings, Facts], bool]
# The rows of the page, as conditions.
ROWS: dict[str, Holds] = {
    "`ENGINE` is set": lambda s, f: s.engine is not None,
    "vLLM is not installed, `FORCE_VLLM=1`, `USE_VLLM` is not `false`": lambda s, f: (
        not f.has_vllm and s.force_vllm and s.use_vllm is not False
    ),
    "vLLM is not installed": lambda s, f: not f.has_vllm,
    "there is a GPU and no C compiler, `FORCE_VLLM=0`": lambda s, f: (
        not f.has_compiler and not s.force_vllm
    ),
    "`USE_VLLM=false`": lambda s, f: s.use_vllm is False,
    "`USE_VLLM=auto`, and there is no GPU": lambda s, f: s.use_vllm is None and not f.has_gpu,
    "`BATCH_MODE=1`, `VLLM_BATCH_USE_LLM=1`, `FORCE_VLLM=1`": lambda s, f: (
        s.batch_mode and s.vllm_batch_use_llm and s.force_vllm
    ),
    "`BATCH_MODE=1`, `VLLM_BATCH_USE_LLM=1`": lambda s, f: s.batch_mode and s.vllm_batch_use_llm,
    "`FORCE_VLLM=1`": lambda s, f: s.force_vllm,
    "else": lambda s, f: True,
}


def page_rows() -> list[tuple[str, str]]:
    section = pages.text("docs/configuration.md").partition("\n## Which engine\n")[2]
    return re.findall(r"^\| (.+?) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)[1:]


def test_the_page_and_the_function_agree_on_every_combination() -> None:
    rows = page_rows()
    assert [where for where, _ in rows] == list(ROWS)
    for engine, use, force, batch, offline in itertools.product(
        (None, "simulated"), (True, False, None), *[(True, False)] * 3
    ):
        settings = EngineSettings.load(
            engine=engine,
            use_vllm=use,
            force_vllm=force,
            batch_mode=batch,
            vllm_batch_use_llm=offline,
        )
        # A compiler is missing only where one is needed: with a GPU.
        for has_vllm, has_compiler, has_gpu in itertools.product((True, False), repeat=3):
            facts = Facts(has_vllm, has_compiler or not has_gpu, has_gpu)
            told = next(cell for where, cell in rows if ROWS[where](settings, facts))
            names = re.findall(r"`(\w+)`", told)
            if told.startswith("none"):
                with pytest.raises(SettingsError):
                    engines_to_try(settings, facts)
            else:
                assert engines_to_try(settings, facts) == (names or [engine])
