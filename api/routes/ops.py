"""How the service is: for people, load balancers and monitoring. Nothing here changes anything."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from api.deps import Services, ServicesDep
from api.metrics import CONTENT_TYPE
from api.responses import JsonResponse
from api.settings import VERSION
from shared.errors import BrokerUnavailable
from shared.queue.stats import QueueStats
from shared.request import SCHEMA_VERSION
from shared.worker_info import WorkerInfo, WorkerSeen

router = APIRouter()
PREVIEW_CHARS = 200
WORKER_LIMITS = ("STALL_LIMIT_S",)


@router.get("/", summary="warming, ok or batch, at once")
async def status(services: ServicesDep) -> Response:
    """From memory: no broker call, so it answers whatever else is down."""
    ready = _ready(services)
    if not ready:
        return JsonResponse({"status": "warming"})
    is_batch = all(info.batch_mode for info in ready)
    return JsonResponse({"status": "batch" if is_batch else "ok"})


@router.get("/info", summary="Engine, defaults, limits, public settings")
async def info(services: ServicesDep) -> Response:
    settings, variables = services.settings, services.public_variables
    ready = _ready(services)
    live = [worker.info for worker in services.producer.known_workers if worker.is_live]
    shown = next(iter(ready or live), None)
    backend, kind = _engine_words(shown.engine) if shown else (None, None)
    prompt = services.prompts.current
    body = {
        "status": "ok" if ready else "warming",
        "backend": backend,
        "engine_kind": kind,
        "batch_mode": bool(ready) and all(info.batch_mode for info in ready),
        "model_dir": shown.model_dir if shown and shown.model_dir else _configured_dir(variables),
        "system_prompt_len": len(prompt),
        "system_prompt_preview": prompt[:PREVIEW_CHARS],
        "profile": settings.profile,
        "defaults": settings.predict_defaults,
        "env": variables,
        "model": shown.model if shown else None,
        "max_model_len": shown.max_model_len if shown else None,
        "limits": {**settings.limits, **_worker_limits(live)},
        "system_prompt_version": services.prompts.version,
        "workers": [_effective(info) for info in live],
        "version": VERSION,
    }
    return JsonResponse(body)


@router.get("/livez", summary="The event loop turns")
async def livez() -> Response:
    return JsonResponse({"status": "ok"})


@router.get("/readyz", summary="The broker answers, and this process is not stopping")
@router.get("/health", summary="As /readyz")
async def readyz(services: ServicesDep) -> Response:
    """A full queue is busy, never unhealthy; nor is one without workers, which takes requests."""
    services.drain.check()
    if not services.producer.is_up:
        reason = services.producer.unfit or "the broker does not answer"
        raise BrokerUnavailable(reason, retry_after_s=2)
    await services.producer.stats()
    return JsonResponse({"status": "ok"})


@router.get("/workers", summary="Every worker with its state and start-up report")
async def workers(services: ServicesDep) -> Response:
    stats = await services.producer.stats()
    return JsonResponse({"workers": [_worker(worker) for worker in stats.workers]})


@router.get("/queue", summary="Depth, age, rates")
async def queue(services: ServicesDep) -> Response:
    return JsonResponse(_figures(await services.producer.stats(), services))


@router.get("/metrics", summary="For Prometheus", response_class=Response)
async def metrics(services: ServicesDep) -> Response:
    """From memory: the queue's figures are at most a second old, or the last known ones."""
    return Response(services.metrics.text(), headers={"content-type": CONTENT_TYPE})


@router.get("/version", summary="What is running")
async def version(services: ServicesDep) -> Response:
    return JsonResponse(
        {
            "name": "sluice",
            "version": VERSION,
            "schema_version": SCHEMA_VERSION,
            "api_id": services.producer.api_id,
        }
    )


def _ready(services: Services) -> list[WorkerInfo]:
    known = services.producer.known_workers
    return [worker.info for worker in known if worker.is_live and worker.info.state.can_serve]


def _engine_words(engine: str) -> tuple[str, str | None]:
    """The first seed's two words for an engine: the backend, and which of vLLM's faces."""
    if engine.startswith("vllm"):
        return "vllm", "llm" if "offline" in engine else "async_v1"
    return engine, None


def _configured_dir(variables: dict[str, str]) -> str | None:
    if "MODEL_DIR" in variables:
        return variables["MODEL_DIR"]
    return f"./model/{variables['MODEL_ID']}" if "MODEL_ID" in variables else None


def _worker_limits(live: list[WorkerInfo]) -> dict[str, Any]:
    """Limits that only workers read, told by those that run."""
    told = {name: value for info in reversed(live) for name, value in info.effective_args.items()}
    return {name: told[name.lower()] for name in WORKER_LIMITS if name.lower() in told}


def _effective(info: WorkerInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "state": info.state.value,
        "engine": info.engine,
        "model": info.model,
        "model_dir": info.model_dir,
        "max_model_len": info.max_model_len,
        "slots": info.slots,
        "batch_mode": info.batch_mode,
        "capabilities": list(info.capabilities),
        "effective_args": info.effective_args,
    }


def _worker(worker: WorkerSeen) -> dict[str, Any]:
    # The encoder leaves defaults out, and a reader should not have to know them.
    told = {name: getattr(worker.info, name) for name in worker.info.__struct_fields__}
    report = [msgspec.structs.asdict(step) for step in worker.info.start_report]
    shown = {**told, "start_report": report}
    return {**shown, "age_s": round(worker.age_s, 3), "is_live": worker.is_live}


def _figures(stats: QueueStats, services: Services) -> dict[str, Any]:
    settings = services.settings
    return {
        "queue": settings.queue_name,
        "queued": stats.queued,
        "running": stats.running,
        "live": stats.live,
        "depth": stats.depth,
        "redelivered": stats.redelivered,
        "suspects": stats.suspects,
        "later": stats.later,
        "tokens": stats.tokens,
        "oldest_age_s": stats.oldest_age_s,
        "drain_rate_per_s": round(stats.drain_rate_per_s, 3),
        "paused": stats.paused,
        "dead_letters": stats.dead_letters,
        "workers": sum(worker.is_live for worker in stats.workers),
        "caps": {"requests": settings.queue_cap, "tokens": settings.queue_tokens_cap},
        "counters": stats.counters,
    }
