"""Which environment each part gets, and how workers share a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from api.__main__ import server_for
from api.app import build_app
from api.settings import ApiSettings
from cli import machine
from cli.broker import Broker
from cli.data_folder import DataFolder
from cli.machine import openmp_library, share_cores, visible_gpus
from cli.parts import (
    Placement,
    api_part,
    broker_part,
    model_part,
    placement_env,
    placements,
    worker_part,
)
from cli.settings import UpSettings

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
    part = api_part(FOLDER, {"PORT": "1", "HOST": "x"}, "127.0.0.1", 9000, drain_s=7.0)
    assert (part.env["HOST"], part.env["PORT"]) == ("127.0.0.1", "9000")


@pytest.mark.parametrize("drain_s", [0.0, UpSettings.model_fields["api_drain_s"].default, 600.0])
def test_the_front_door_is_killed_only_after_its_callers_had_their_time(drain_s: float) -> None:
    settings = ApiSettings(_env_file=None, api_drain_s=drain_s)
    config = server_for(build_app(settings), settings).config
    assert config.timeout_graceful_shutdown is not None
    part = api_part(FOLDER, {}, "127.0.0.1", 9000, drain_s=drain_s)
    assert part.grace_s > config.timeout_graceful_shutdown + 5.0


def test_each_of_several_workers_has_a_port_of_its_own() -> None:
    env = {"WORKER_PORT": "9100"}  # as the parts inherit it

    def port(number: int, first_port: int) -> str | None:
        part = worker_part(number, FOLDER, env, None, {}, drain_s=1.0, first_port=first_port)
        return part.env.get("WORKER_PORT")

    assert [port(number, 9100) for number in (1, 2, 3)] == ["9100", "9101", "9102"]


def gpus_of(placed: list[Placement]) -> list[str]:
    return [placement_env(p, None, bound=False)["CUDA_VISIBLE_DEVICES"] for p in placed]


def test_one_worker_for_each_gpu_unless_a_number_is_given() -> None:
    assert gpus_of(placements(None, ["0", "1"], 1, [0], OPENMP)) == ["0", "1"]
    assert gpus_of(placements(3, ["0", "1"], 1, [0], OPENMP)) == ["0", "1", "0"]
    assert gpus_of(placements(1, ["2", "3"], 1, [0], OPENMP)) == ["2"]


def test_a_worker_that_spans_gpus_gets_them_together() -> None:
    four = ["0", "1", "2", "3"]
    assert gpus_of(placements(None, four, 2, [0], None)) == ["0,1", "2,3"]
    assert gpus_of(placements(None, four[:3], 2, [0], None)) == ["0,1"]
    # More than there are: the engine itself says what is wrong.
    assert gpus_of(placements(None, ["0"], 2, [0], None)) == ["0"]


def test_a_worker_alone_on_a_cpu_chooses_its_cores_itself() -> None:
    alone = [Placement(openmp=OPENMP)]
    assert placements(None, [], 1, [0, 1], OPENMP) == placements(1, [], 1, [0, 1], OPENMP) == alone


def test_two_workers_on_a_cpu_share_no_core() -> None:
    placed = placements(2, [], 1, [0, 1, 2], None)
    assert [placement_env(p, None, bound=False) for p in placed] == [
        {"VLLM_CPU_OMP_THREADS_BIND": "0,1"},
        {"VLLM_CPU_OMP_THREADS_BIND": "2"},
    ]
    assert [placement_env(p, None, bound=True) for p in placed] == [{}, {}]


def test_more_workers_than_cores_are_bound_to_none() -> None:
    assert share_cores([0, 1], 3) == [[], [], []]


def test_workers_of_several_machines_on_one_broker_have_different_names() -> None:
    part = worker_part(1, FOLDER, {}, None, {}, drain_s=1.0, host="gpu box.example")
    assert part.name == "worker-1"
    assert part.env["WORKER_ID"] == "gpu-box.example-worker-1"


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


@pytest.mark.parametrize(
    ("library", "given", "preloaded"),
    [
        ("libjemalloc.so.2", None, "libjemalloc.so.2"),
        ("libjemalloc.so.2", "/lib/x.so", "libjemalloc.so.2:/lib/x.so"),
        ("libjemalloc.so.2", "/lib/libtcmalloc.so", "/lib/libtcmalloc.so"),
        ("/a b/libjemalloc.so.2", "/lib/x.so", "/lib/x.so"),  # the loader would look for two
        (None, "/lib/x.so", "/lib/x.so"),
        (None, None, None),
    ],
)
def test_the_broker_gets_the_faster_allocator_unless_the_user_has_chosen_one(
    library: str | None, given: str | None, preloaded: str | None
) -> None:
    env = {} if given is None else {"LD_PRELOAD": given}
    part = broker_part(Broker(Path(), Path("s")), FOLDER, env, library, given)
    assert part.env.get("LD_PRELOAD") == preloaded


def test_the_allocator_is_the_machines_or_the_one_that_set_up_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(machine, "find_library", lambda name: None)
    assert machine.allocator_library(tmp_path) is None
    own = tmp_path / "lib" / "libjemalloc.so.2"
    own.parent.mkdir()
    own.touch()
    assert machine.allocator_library(tmp_path) == str(own)
    monkeypatch.setattr(machine, "find_library", lambda name: f"lib{name}.so.2")
    assert machine.allocator_library(tmp_path) == "libjemalloc.so.2"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.allocator_library(tmp_path) is None


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
