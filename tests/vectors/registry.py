"""Which check holds a vector against the service: by the name of the function that was recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.vectors import (
    engines,
    http,
    prompts,
    questions,
    records,
    repairs,
    sampling,
    speculation,
    variables,
    warmup,
)
from tests.vectors.comparison import Differences
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector

# Answers what differs; nothing if the vector holds.
Check = Callable[[Vector, Surroundings], Differences | Awaitable[Differences]]

CHECKS: dict[str, Check] = {
    "routing": questions.routing,
    "postprocess_answer": questions.postprocess_answer,
    "strip_think": questions.think,
    "format_as_chat": prompts.format_as_chat,
    "env_flag": variables.env_flag,
    "module_import": variables.module_import,
    "warmup_settings": variables.warmup_settings,
    "load_warmup_user_prompts": warmup.load_warmup_user_prompts,
    "should_use_vllm": engines.should_use_vllm,
    "engine_start": engines.engine_start,
    "fix_compilation_config": repairs.fix,
    "fix_load_format": repairs.fix,
    "parse_estimated_max_len": repairs.parse_estimated_max_len,
    "build_speculative_config": speculation.build_speculative_config,
    "build_sampling_params": sampling.build_sampling_params,
    "sampling_params.get_sampling_config": sampling.get_sampling_config,
    "sampling_params.from_dict": records.from_dict,
    "same_batch_group": records.same_batch_group,
    "set_status": records.set_status,
    "stream_with_stop": records.stream_with_stop,
    "http": http.http,
    "set_system_prompt": http.set_system_prompt,
}
