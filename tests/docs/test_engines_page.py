"""`docs/engines.md` says of each engine what the engine says of itself."""

from __future__ import annotations

import importlib
import re
from typing import Any, get_args

import pytest

from shared.sampling import SamplingParams
from tests.architecture.source_tree import modules
from tests.docs import pages
from worker.engines.devices import LARGE_GPU_BYTES, Device
from worker.generate import OWN_POWERS
from worker.repairs import REPAIRS
from worker.settings import EngineName

PAGE = pages.text("docs/engines.md")
NAMES = sorted(get_args(EngineName))


def engine(name: str) -> Any:
    """The class; its modules are light, since heavy libraries are imported inside functions."""
    for module in modules("worker"):
        if module.path.parent.name == "engines" and module.path.name != "base.py":
            for value in vars(importlib.import_module(module.name)).values():
                if getattr(value, "name", None) == name and hasattr(value, "capabilities"):
                    return value
    raise AssertionError(f"no class is the engine {name}")


def cells(first: str) -> list[str]:
    """The rest of the row that begins so."""
    start = f"{re.escape(first)} " if first else ""
    row, *_ = re.findall(rf"^\| {start}\| (.+) \|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in str(row).split(" | ")]


def columns() -> list[str]:
    return [cell.strip("`") for cell in cells("")]


def test_every_engine_has_a_row_and_a_column() -> None:
    first = PAGE.partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]\w+)` \| [^|]+ \| [^|]+ \|$", first, re.MULTILINE)
    assert sorted(rows) == NAMES
    assert sorted(columns()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_what_an_engine_lacks(name: str) -> None:
    cell = cells("sampling parameters that it lacks")[columns().index(name)]
    able = engine(name).capabilities.fields | OWN_POWERS
    lacking = set(SamplingParams.__struct_fields__) - able
    assert set(re.findall(r"`(\w+)`", cell)) == lacking


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_can_be_stopped_and_mixed(name: str) -> None:
    column, able = columns().index(name), engine(name).capabilities
    assert cells("a run can be stopped midway")[column] == ("yes" if able.can_abort else "no")
    own = set(SamplingParams.__struct_fields__) - able.rows_share - {"echo"}
    differ = {"yes": not able.rows_share, "in their limits alone": own == {"max_tokens"}}
    assert differ[cells("rows of one call may differ")[column]]


def test_the_page_says_what_vllm_is_started_with() -> None:
    sizes = {
        "cpu": Device("cpu").default_batch,
        "cuda": Device("cuda", LARGE_GPU_BYTES - 1).default_batch,
        "large": Device("cuda", LARGE_GPU_BYTES).default_batch,
    }
    for column, row in enumerate(
        (
            "requests at once (`VLLM_MAX_NUM_SEQS`)",
            "tokens of one step (`VLLM_MAX_NUM_BATCHED_TOKENS`)",
        )
    ):
        gpu, cpu = cells(row)
        assert gpu.startswith(f"{sizes['cuda'][column]:,}")
        assert f"{sizes['large'][column]:,} from" in gpu
        assert cpu == f"{sizes['cpu'][column]:,}"


def test_every_repair_has_a_row() -> None:
    section = PAGE.partition("\n## When vLLM refuses to start\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(REPAIRS)
