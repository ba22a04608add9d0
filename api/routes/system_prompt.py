"""GET and POST /system_prompt, with the bodies of the first seed, and DELETE, which goes back to the default."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.deps import AdminDep, ServicesDep
from api.responses import JsonResponse
from api.schemas import SystemPromptBody, read_json, read_system_prompt

router = APIRouter()


@router.get("/system_prompt", summary="The system prompt of /predict")
async def read(services: ServicesDep) -> Response:
    """Also while the broker is away: the last known one, else the default."""
    return JsonResponse({"system_prompt": services.prompts.current})


@router.post(
    "/system_prompt",
    summary="Set it for everybody, from now on",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SystemPromptBody.model_json_schema()}},
        }
    },
)
async def write(request: Request, services: ServicesDep, by: AdminDep) -> Response:
    parsed = read_json(await request.body(), request.headers.get("content-type"))
    stored = await services.prompts.write(read_system_prompt(parsed).system_prompt, by)
    return JsonResponse({"status": "ok", "system_prompt_len": len(stored)})


@router.delete("/system_prompt", summary="Back to the default, for everybody")
async def reset(services: ServicesDep, by: AdminDep) -> Response:
    default = await services.prompts.reset(by)
    return JsonResponse({"status": "ok", "system_prompt_len": len(default)})
