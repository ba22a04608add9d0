"""Cleaning never takes more than it says, and nothing from a running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.clean import clean
from cli.data_folder import DataFolder, FolderInUse


def stored(folder: Path) -> tuple[Path, Path]:
    data, models = folder / "data", folder / "model"
    with DataFolder(data) as made:
        (made.broker / "log.aof").touch()
        made.log("api").touch()
    (models / "org" / "name").mkdir(parents=True)
    return data, models


def test_without_all_only_logs_go(tmp_path: Path) -> None:
    data, models = stored(tmp_path)
    said: list[str] = []
    clean(data, models, everything=False, say=said.append)
    assert said == [f"removing {data}/logs"]
    assert (data / "broker" / "log.aof").exists()
    assert (models / "org" / "name").exists()


def test_with_all_data_and_models_go_but_not_what_others_put_beside(tmp_path: Path) -> None:
    data, models = stored(tmp_path)
    (data / "notes.txt").touch()
    clean(data, models, everything=True, say=lambda _: None)
    assert [path.name for path in data.iterdir()] == ["notes.txt"]
    assert not models.exists()


def test_the_data_of_a_running_service_is_refused(tmp_path: Path) -> None:
    data, models = stored(tmp_path)
    with DataFolder(data), pytest.raises(FolderInUse):
        clean(data, models, everything=True, say=lambda _: None)
    assert (data / "broker" / "log.aof").exists()
    assert models.exists()


def test_nothing_to_clean_is_no_error(tmp_path: Path) -> None:
    clean(tmp_path / "none", tmp_path / "no", everything=True, say=lambda _: None)
    assert list(tmp_path.iterdir()) == []
