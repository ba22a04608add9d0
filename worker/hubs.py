"""Fetches a model's files from the Hugging Face hub or ModelScope into a folder. Knows nothing of
where it will lie.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.progress import Progress, quiet, say, watched

# Other forms of the same weights, which no engine here loads.
UNWANTED = re.compile(
    r"(^|/)(original|onnx|openvino|coreml)/|\.(pth|onnx|msgpack|h5|ot|tflite|gguf)$"
)


class ModelError(Exception):
    """There is no model to serve; the text says what to do."""


@dataclass(frozen=True)
class HubModel:
    """A model to fetch into `path`."""

    path: Path
    model_id: str
    hub: str
    revision: str | None
    token: str | None = field(default=None, repr=False)


def wanted_files(sizes: Mapping[str, int]) -> dict[str, int]:
    """What to fetch of a repository (name to bytes): no second copy of the weights in another
    format.
    """
    kept = {name: size for name, size in sizes.items() if not UNWANTED.search(name)}
    if any(name.endswith(".safetensors") for name in kept):
        kept = {name: size for name, size in kept.items() if not name.endswith(".bin")}
    return kept


def fetch(source: HubModel, into: Path) -> None:
    """Downloads the files that are wanted into a folder; files that are there in full are kept."""
    for left in into.rglob("*.incomplete"):  # of a run that was killed; never taken up again
        left.unlink()
    name = f"{source.model_id} from {source.hub}"
    say(f"fetching {name}")
    with Progress(source.model_id) as progress, quiet():
        try:
            listing = modelscope_files if source.hub == "modelscope" else huggingface_files
            sizes = wanted_files(listing(source))
            total = sum(sizes.values())
            with watched(lambda: progress.show(*amount(folder_bytes(into), total))):
                get = modelscope_get if source.hub == "modelscope" else huggingface_get
                get(source, into, list(sizes))
        except (
            Exception
        ) as error:  # each hub's client has its own tree, and network errors of several libraries
            raise ModelError(
                f"MODEL_ID={source.model_id} could not be fetched from {source.hub}: "
                f"{first_line(error)}. What was received is kept for the next try. Without a way "
                f"to the hub, put the model's folder at {source.path} or name it with MODEL_DIR"
            ) from error


def huggingface_files(source: HubModel) -> dict[str, int]:
    from huggingface_hub import HfApi

    info = HfApi().model_info(source.model_id, revision=source.revision, files_metadata=True)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def huggingface_get(source: HubModel, into: Path, files: list[str]) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        source.model_id, revision=source.revision, local_dir=into, allow_patterns=files
    )


def modelscope_files(source: HubModel) -> dict[str, int]:
    from modelscope.hub.api import HubApi

    api = HubApi(token=source.token)
    listed = api.get_model_files(source.model_id, revision=source.revision)
    return {str(f["Path"]): int(f.get("Size") or 0) for f in listed if f.get("Type") != "tree"}


def modelscope_get(source: HubModel, into: Path, files: list[str]) -> None:
    from modelscope.hub.snapshot_download import snapshot_download

    snapshot_download(
        source.model_id,
        revision=source.revision,
        local_dir=str(into),
        allow_patterns=files,
        token=source.token,
    )


def amount(done: int, total: int) -> tuple[float, str]:
    """Fraction and text of a download, in bytes."""
    return (min(1.0, done / total) if total else 0.0, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")


def folder_bytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # a partial file was renamed between the two calls
            total += file.stat().st_size if file.is_file() else 0
    return total


def first_line(error: BaseException) -> str:
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")
