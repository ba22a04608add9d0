"""The peer gets the engine arguments that the worker tells of itself, and nothing more."""

from __future__ import annotations

from bench.peer import flags


def test_arguments_become_the_servers_flags() -> None:
    told = {
        "dtype": "bfloat16",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 2**30,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "quantization": None,
        "disable_log_stats": False,
    }
    assert flags(told) == [
        *("--dtype", "bfloat16"),
        *("--max-num-seqs", "128"),
        *("--max-num-batched-tokens", "2048"),
        *("--kv-cache-memory-bytes", str(2**30)),
        "--enforce-eager",
        "--no-enable-prefix-caching",
    ]


def test_what_is_not_told_is_left_to_the_server() -> None:
    assert flags({}) == []
