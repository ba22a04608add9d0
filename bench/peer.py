"""vLLM's own OpenAI server, started with the very engine arguments that our worker has in force. The peer of
`bench.engine`; it knows nothing of Sluice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.settings import environment
from bench.stack import Guarded, answers, free_port

# What decides the engine's speed, under the names that both sides use.
SAME = (
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "quantization",
    "load_format",
    "kv_cache_dtype",
)
SWITCHES = ("enforce_eager", "enable_prefix_caching", "trust_remote_code")
# As a worker sets them before it loads vLLM.
SAME_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def flags(args: Mapping[str, object]) -> list[str]:
    """Engine arguments as the server's command line takes them; what is not set is left to vLLM."""
    words = []
    for name in SAME:
        value = args.get(name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name in SWITCHES:
        if name in args:
            words.append(f"--{'' if args[name] else 'no-'}{name.replace('_', '-')}")
    return words


def openmp() -> dict[str, str]:
    """The faster OpenMP that a worker on a CPU is started with, where there is one."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    has_it = sys.platform.startswith("linux") and library.is_file()
    return {"LD_PRELOAD": str(library)} if has_it else {}


@contextmanager
def vllm_server(folder: Path, model: Path, args: Mapping[str, object]) -> Iterator[str]:
    """Gives the server's address once it serves."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
        *flags(args),
    )
    url = f"http://127.0.0.1:{port}"
    with Guarded(
        "vllm-server", command, folder, environment({**SAME_ENVIRONMENT, **openmp()})
    ) as program:
        program.until(lambda: answers(f"{url}/health"))
        yield url
