"""Which environment each part gets, and how workers share a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.data_folder import DataFolder
from cli.machine import openmp_library, share_cores, visible_gpus
from cli.parts import Placement, api_part, model_part, placement_env, placements, worker_part

FOLDER = DataFolder(Path("/data"))
OPENMP = Path("/venv/lib/libiomp5.so")


def test_a_worker_gets_its_name_its_model_and_no_way_to_the_hubs() -> None:
    part = worker_part(2, FOLDER, {"PATH": "/bin"}, Path("/models/m"), {"X": "1"}, drain_s=30.0)
    assert part.name == "worker-2"
    assert part.command[1:] == ("-m", "worker")
    assert part.env == {
        "PATH": "/bin",
        "WORKER_ID": "worker-2",
        "MODEL_DIR": "/models/m",
        "X": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    assert part.grace_s > 30.0  # killed only after it had its time to drain
    assert part.log == Path("/data/logs/worker-2.log")


def test_the_model_alone_may_reach_the_hubs() -> None:
    assert "HF_HUB_OFFLINE" not in model_part(FOLDER, {}).env


def test_the_front_door_is_told_where_to_listen() -> None:
    part = api_part(FOLDER, {"PORT": "1", "HOST": "x"}, "127.0.0.1", 9000)
    assert (part.env["HOST"], part.env["PORT"]) == ("127.0.0.1", "9000")


def test_one_worker_for_each_gpu_in_turn() -> None:
    placed = placements(3, ["0", "1"], [], OPENMP)
    assert [placement_env(p, None, bound=False) for p in placed] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"CUDA_VISIBLE_DEVICES": "0"},
    ]


def test_a_worker_alone_on_a_cpu_chooses_its_cores_itself() -> None:
    assert placements(1, [], [[0, 1]], OPENMP) == [Placement(openmp=OPENMP)]


def test_two_workers_on_a_cpu_share_no_core() -> None:
    placed = placements(2, [], share_cores([0, 1, 2], 2), None)
    assert [placement_env(p, None, bound=False) for p in placed] == [
        {"VLLM_CPU_OMP_THREADS_BIND": "0,1"},
        {"VLLM_CPU_OMP_THREADS_BIND": "2"},
    ]
    assert [placement_env(p, None, bound=True) for p in placed] == [{}, {}]


def test_more_workers_than_cores_are_bound_to_none() -> None:
    assert share_cores([0, 1], 3) == [[], [], []]


@pytest.mark.parametrize(
    ("given", "env"),
    [
        (None, {"LD_PRELOAD": str(OPENMP)}),
        ("/lib/libtcmalloc.so", {"LD_PRELOAD": f"{OPENMP}:/lib/libtcmalloc.so"}),
        ("/opt/libiomp5.so", {}),
    ],
)
def test_openmp_is_preloaded_beside_what_the_user_preloads(
    given: str | None, env: dict[str, str]
) -> None:
    assert placement_env(Placement(openmp=OPENMP), given, bound=False) == env


def test_openmp_is_used_only_where_the_environment_has_it(tmp_path: Path) -> None:
    assert openmp_library(tmp_path) is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert openmp_library(tmp_path) == tmp_path / "lib" / "libiomp5.so"


@pytest.mark.parametrize(
    ("limit", "gpus"),
    [("2,3", ["2", "3"]), ("GPU-8f", ["GPU-8f"]), ("", []), ("-1", []), (" 0 , 1 ", ["0", "1"])],
)
def test_the_users_own_choice_of_gpus_stands(limit: str, gpus: list[str]) -> None:
    assert visible_gpus(limit) == gpus
