"""What the model runs on, and the defaults that follow from it. Asks torch; loads it inside functions."""

from __future__ import annotations

from typing import Literal

import msgspec

GIB = 2**30
LARGE_GPU_BYTES = 70 * GIB
CPU_KV_CACHE_BYTES = GIB


class Device(msgspec.Struct, frozen=True):
    """`computes_bfloat16`: in hardware, or with wide enough vectors; else float32 is some ten times faster."""

    kind: Literal["cpu", "cuda"]
    memory_bytes: int = 0
    computes_bfloat16: bool = True

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def default_dtype(self) -> str:
        """The first seed's float16 on a GPU; on a CPU half precision means bfloat16."""
        if not self.is_cpu:
            return "float16"
        return "bfloat16" if self.computes_bfloat16 else "float32"

    @property
    def default_batch(self) -> tuple[int, int]:
        """Requests, and tokens of one step: what vLLM's own server takes on such a device."""
        if self.is_cpu:
            return 128, 2048
        return (1024, 8192) if self.memory_bytes >= LARGE_GPU_BYTES else (256, 2048)


def cpu_device() -> Device:
    import torch

    # Private, but the one place that knows: AVX-512 on x86, the bf16 extension on arm.
    probe = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return Device("cpu", computes_bfloat16=probe is None or bool(probe()))


def torch_device() -> Device:
    """The device that torch itself would use."""
    import torch

    if torch.cuda.is_available():
        return Device("cuda", torch.cuda.get_device_properties(0).total_memory)
    return cpu_device()
