"""`docker-compose.yml`, checked without an engine: what makes `docker compose up` work on a laptop and lose nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
import yaml

from cli.parts import API_MARGIN_S, WORKER_MARGIN_S
from cli.settings import UpSettings
from tests.architecture.source_tree import ROOT
from tests.docs.dockerfile import Dockerfile
from tests.valkey_server import Server

SERVICES = ("redis", "api", "worker", "worker-gpu")
OURS = ("api", "worker", "worker-gpu")
WORKERS = ("worker", "worker-gpu")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture
def services(compose: dict[str, Any]) -> dict[str, Any]:
    found = compose["services"]
    assert isinstance(found, dict)
    return found


def seconds(text: str) -> float:
    """Compose's durations: `45s`, `15m`."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", text)
    assert parts, text
    return sum(int(n) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for n, unit in parts)


def default(text: str) -> str:
    """What compose makes of `${NAME:-default}` and `${NAME:+other}` where nothing is set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{\w+:\+[^}]*\}", "", text)


def test_services(services: dict[str, Any]) -> None:
    assert set(services) == set(SERVICES)
    started = {name for name, service in services.items() if "profiles" not in service}
    assert started == {"redis", "api", "worker"}


def test_broker_keeps_what_it_took(services: dict[str, Any]) -> None:
    redis = services["redis"]
    assert re.match(r"(redis:[7-9]|valkey/valkey:[8-9])", redis["image"])
    assert redis["volumes"] == ["queue:/data"]
    assert "ports" not in redis, "nobody outside needs the broker, and it has no password"


def test_broker_understands_its_command(services: dict[str, Any]) -> None:
    program, *options = [default(word) for word in services["redis"]["command"]]
    assert program == "redis-server"
    server = Server(extra=tuple(options)).start()
    try:
        client = redis.Redis.from_url(server.url)
        names = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
        found = {name: client.config_get(name)[name] for name in names}
        client.close()
    finally:
        server.stop()
    assert found == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": str(1 << 30),
        "maxmemory-policy": "noeviction",
    }


def test_front_door_is_published_on_loopback(services: dict[str, Any]) -> None:
    api = services["api"]
    assert [default(port) for port in api["ports"]] == ["127.0.0.1:8000:8000"]
    environment = api["environment"]
    assert environment["HOST"] == "0.0.0.0"
    assert environment["PORT"] == "8000"
    assert default(environment["ALLOW_ANONYMOUS"]) == "1"


@pytest.mark.parametrize("name", OURS)
def test_parts_use_this_broker_and_wait_for_it(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["environment"]["REDIS_URL"] == "redis://redis:6379/0"
    assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}


@pytest.mark.parametrize("name", WORKERS)
def test_workers_can_be_scaled(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert not {"container_name", "ports", "hostname"} & set(service)
    assert "WORKER_ID" not in service["environment"], "two workers must not share an id"


@pytest.mark.parametrize("name", SERVICES)
def test_everything_is_watched_and_comes_back(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    assert {"interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])


@pytest.mark.parametrize("name", WORKERS)
def test_the_port_that_is_probed_stands_over_one_in_dot_env(
    services: dict[str, Any], name: str
) -> None:
    service = services[name]
    assert service["environment"]["WORKER_HOST"] == "0.0.0.0"
    assert service["environment"]["WORKER_PORT"] == service["healthcheck"]["test"][3]


def test_the_front_door_has_time_to_drain(services: dict[str, Any]) -> None:
    drain_s = UpSettings.model_fields["api_drain_s"].default + API_MARGIN_S
    assert seconds(services["api"]["stop_grace_period"]) > drain_s


@pytest.mark.parametrize("name", WORKERS)
def test_workers_have_time_to_drain(services: dict[str, Any], name: str) -> None:
    drain_s = UpSettings.model_fields["drain_s"].default + WORKER_MARGIN_S
    assert seconds(services[name]["stop_grace_period"]) > drain_s


def test_gpu_worker_reserves_a_gpu_and_starts_on_request_only(services: dict[str, Any]) -> None:
    service = services["worker-gpu"]
    assert service["profiles"] == ["gpu"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


@pytest.mark.parametrize(
    ("name", "image"), [("api", "api"), ("worker", "worker-cpu"), ("worker-gpu", "worker-gpu")]
)
def test_images_are_built_from_here_and_share_their_probe(
    services: dict[str, Any], name: str, image: str
) -> None:
    service = services[name]
    dockerfile = Dockerfile.read(image)
    assert service["build"] == {
        "context": ".",
        "dockerfile": f"deploy/docker/{dockerfile.path.name}",
    }
    probe = service["healthcheck"]["test"][1:]
    assert "[" + ", ".join(f'"{word}"' for word in probe) + "]" in dockerfile.only("HEALTHCHECK")


def test_volumes_are_declared(compose: dict[str, Any], services: dict[str, Any]) -> None:
    used = {
        default(volume).partition(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
    }
    assert used == set(compose["volumes"])
    for name in WORKERS:
        assert "models:/app/model" in services[name]["volumes"]


def test_settings_come_from_dot_env_where_there_is_one(services: dict[str, Any]) -> None:
    for name in OURS:
        assert services[name]["env_file"] == [{"path": ".env", "required": False}]
