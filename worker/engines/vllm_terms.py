"""vLLM's words and ours: parameters in, outputs and errors back. Knows no process and no queue."""

from __future__ import annotations

from typing import Any

from shared.errors import InvalidRequest
from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import EngineError, EngineOutput
from worker.engines.stop_tokens import StopRules, Stops

# vLLM reads -1 as "no seed", where to us it is a number like any other.
NO_SEED, ITS_STAND_IN = -1, 2**32 - 1
KEPT_PARAMS = 256


def native_fields(params: SamplingParams, stops: Stops) -> dict[str, Any]:
    """What vLLM is told of a request, in its own words: 0 is greedy, and a `top_k` that is off."""
    return {
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "stop": list(stops.strings),
        "stop_token_ids": list(stops.ids),
        "temperature": 0.0 if params.is_greedy else params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "repetition_penalty": params.repetition_penalty,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "skip_special_tokens": params.skip_special_tokens,
        "logprobs": params.logprobs,
        "seed": ITS_STAND_IN if params.seed == NO_SEED else params.seed,
        "ignore_eos": params.ignore_eos,
    }


def native_params(params: SamplingParams, stops: Stops, stream: bool) -> Any:
    from vllm import SamplingParams as Native
    from vllm.sampling_params import RequestOutputKind

    return Native(
        **native_fields(params, stops),
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        # Each request gets a shallow copy; what vLLM adds to the shared sets is the model's own, so equal for all.
        skip_clone=True,
    )


class NativeParams:
    """vLLM's parameter objects, one for all requests of a bucket, each with the stops that it was made of."""

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._kept: dict[tuple[SamplingParams, bool], tuple[Any, Stops]] = {}

    def of(self, params: SamplingParams, stream: bool) -> tuple[Any, Stops]:
        """Raises what vLLM's own checks say."""
        key = (params, stream)
        if key not in self._kept:
            if len(self._kept) >= KEPT_PARAMS:
                self._kept.clear()
            stops = self._rules.stops(params)
            self._kept[key] = native_params(params, stops, stream), stops
        return self._kept[key]


def piece_of(rid: str, output: Any, stops: Stops) -> EngineOutput:
    made = output.outputs[0]
    reason = made.finish_reason
    error = None
    if reason == "error":
        error = EngineError("vLLM ended the request with an error")
    return EngineOutput(
        rid,
        made.text,
        tuple(made.token_ids),
        # `repetition` is vLLM's own stop rule, which nobody here asks for.
        finish_reason=FinishReason("stop" if reason == "repetition" else reason)
        if reason
        else None,
        stop_reason=stops.reason(_reported(made)),
        cached_tokens=output.num_cached_tokens or 0,
        first_token_s=_first_token_s(output.metrics),
        logprobs=_logprobs(made) if made.logprobs is not None else None,
        error=error,
    )


def _reported(made: Any) -> str | int | None:
    """What ended an answer. vLLM says nothing of the end of sequence, which a request may have named itself."""
    if made.finish_reason == "stop" and made.stop_reason is None and made.token_ids:
        return int(made.token_ids[-1])
    return made.stop_reason  # type: ignore[no-any-return]


def _first_token_s(stats: Any) -> float | None:
    """vLLM has no stats where they are off, and leaves 0 in them until a first token comes."""
    latency = getattr(stats, "first_token_latency", 0.0)
    return latency if latency > 0 else None


def _logprobs(made: Any) -> list[dict[str, Any]]:
    """For each token: itself and the likeliest, as id, text and natural logarithm."""
    told = []
    for token_id, found in zip(made.token_ids, made.logprobs, strict=True):
        entries = [
            {"token_id": int(i), "token": item.decoded_token, "logprob": float(item.logprob)}
            for i, item in found.items()
        ]
        own = next(entry for entry in entries if entry["token_id"] == token_id)
        likeliest = sorted(entries, key=lambda entry: -entry["logprob"])
        told.append({**own, "top_logprobs": likeliest})
    return told


def request_error(error: Exception) -> Exception:
    """The caller's fault where vLLM says so; else the engine's, of this request alone."""
    from vllm.exceptions import VLLMClientError

    cause = error.__cause__ if isinstance(error.__cause__, VLLMClientError) else error
    if isinstance(cause, VLLMClientError | ValueError):
        return InvalidRequest(str(cause), param=getattr(cause, "parameter", None))
    return EngineError(f"vLLM failed on this request: {words(error)}")


def words(error: BaseException) -> str:
    """One line: a list of failed checks by name, else the error with the cause that vLLM wrapped."""
    checks = getattr(error, "errors", None)
    if callable(checks):
        return "; ".join(map(_check, checks()))
    said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    if error.__cause__ is not None and str(error.__cause__):
        return f"{said} ({words(error.__cause__)})"
    return said


def _check(failed: dict[str, Any]) -> str:
    """One of pydantic's failed checks: where, what is wanted, and what was given if that is a word."""
    place = ".".join(map(str, failed["loc"]))
    given = failed.get("input")
    got = f", got {given!r}" if isinstance(given, str) else ""
    return f"{place}: {failed['msg']}{got}".lstrip(": ")
