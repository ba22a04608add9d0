"""What is said to vLLM about guessing ahead; the first seed's own cases are among the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from worker.settings import EngineSettings
from worker.speculation import speculative_config


def config(root: Path = Path("."), **given: Any) -> dict[str, Any] | None:
    settings = EngineSettings.load(enable_speculative_decoding=True, **given)
    return speculative_config(settings, root)


def test_the_draft_model_is_found_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "model" / "org" / "small"
    folder.mkdir(parents=True)
    found = config(tmp_path, spec_draft_model_id="org/small", spec_draft_max_model_len=512)
    assert found == {
        "method": "draft_model",
        "num_speculative_tokens": 6,
        "model": str(folder),
        "max_model_len": 512,
    }


def test_a_method_is_known_in_any_case() -> None:
    found = config(spec_method=" NGram ")
    assert found is not None
    assert found["method"] == "ngram"


def test_speculation_without_its_model_is_off_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert config(tmp_path) is None
    assert "set SPEC_DRAFT_MODEL_DIR" in caplog.text
    assert config(tmp_path, spec_draft_model_dir=tmp_path / "gone") is None
    assert "there is no folder" in caplog.text


@pytest.mark.parametrize("method", ["suffix", "mtp", "qwen3_next_mtp"])
def test_a_method_that_asks_no_other_model_needs_no_folder(method: str) -> None:
    assert config(spec_method=method) == {"method": method, "num_speculative_tokens": 6}


def test_speculation_that_is_a_must_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="SPEC_DRAFT_OPTIONAL=0: there is no folder"):
        config(tmp_path, spec_draft_model_id="org/small", spec_draft_optional=False)
