"""Where the model comes from: the order of places, the download, and the packaged demo model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.worker.hub_under_test import hub_serving
from worker.hubs import HubModel, ModelError, wanted_files
from worker.model import (
    CHATML_MARK,
    DEFAULT_MODEL_ID,
    DEMO_NAME,
    DEMO_NOTICE,
    DemoModel,
    LocalModel,
    ModelSource,
    choose,
    choose_draft,
    is_model_folder,
    is_model_id,
    prepare,
)
from worker.settings import EngineSettings, ModelSettings

ROOT = Path(__file__).parents[2]
WEIGHTS = os.urandom(3_000_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"the same weights again",
    "onnx/model.onnx": b"and again",
    "README.md": b"# a model",
}


def chosen(there: set[str], **settings: object) -> ModelSource:
    """The choice of a worker in whose checkout the folders in `there` hold models."""
    paths = {Path(path) for path in there}
    return choose(ModelSettings.load(**settings), lambda path: path in paths)


def test_the_order_of_places() -> None:
    everything = {"elsewhere", "model/org/name", "merged"}
    assert chosen(everything, model_dir="elsewhere", model_id="org/name") == LocalModel(
        Path("elsewhere")
    )
    assert chosen(everything, model_id="org/name") == LocalModel(Path("model/org/name"))
    assert chosen({"merged"}, model_id="org/name") == LocalModel(Path("merged"))
    assert chosen(set(), model_id="org/name") == HubModel(
        Path("model/org/name"), "org/name", "huggingface", None
    )
    assert isinstance(chosen(set()), DemoModel)
    assert chosen({"merged"}) == LocalModel(Path("merged"))
    assert chosen({f"model/{DEFAULT_MODEL_ID}"}) == LocalModel(Path("model") / DEFAULT_MODEL_ID)


def test_hub_and_revision_are_the_users() -> None:
    source = chosen(set(), model_id="org/name", model_hub="modelscope", model_revision="v2")
    assert source == HubModel(Path("model/org/name"), "org/name", "modelscope", "v2")


def test_pull_asks_the_hub_even_where_a_copy_is_there() -> None:
    settings = ModelSettings.load(model_id="org/name")
    assert isinstance(choose(settings, lambda _: True, refresh=True), HubModel)
    assert isinstance(choose(ModelSettings.load(), lambda _: True, refresh=True), LocalModel)


def test_a_model_dir_that_holds_no_model_is_named() -> None:
    with pytest.raises(ModelError, match="MODEL_DIR=gone holds no model"):
        chosen({"merged"}, model_dir="gone", model_id="org/name")


@pytest.mark.parametrize(
    "text", ["../secrets", "/etc", "a/b/c", "a//b", "", ".hidden", "org/..", "a b"]
)
def test_a_model_id_cannot_lead_out_of_its_folder(text: str) -> None:
    assert not is_model_id(text)


@pytest.mark.parametrize("text", ["gpt2", "Qwen/Qwen3-4B", "org/name_v1.5", DEFAULT_MODEL_ID])
def test_model_ids_of_the_hubs_pass(text: str) -> None:
    assert is_model_id(text)


def test_a_model_folder_has_a_configuration_and_weights(tmp_path: Path) -> None:
    assert not is_model_folder(tmp_path)
    (tmp_path / "config.json").touch()
    assert not is_model_folder(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert is_model_folder(tmp_path)


def folder_of(path: Path, config: str) -> LocalModel:
    (path / "config.json").write_text(config)
    (path / "model.safetensors").touch()
    return LocalModel(path)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("BertModel", "bert"),
        ("BertForMaskedLM", "bert"),
        ("CLIPModel", "clip"),
        ("Qwen3ForSequenceClassification", "qwen3"),
    ],
)
def test_a_model_that_writes_no_text_is_refused_in_one_line(
    kind: str, family: str, tmp_path: Path
) -> None:
    source = folder_of(tmp_path, json.dumps({"architectures": [kind], "model_type": family}))
    assert prepare(source, is_draft=True) == tmp_path
    with pytest.raises(ModelError, match=f"holds {kind}, which is no language model") as caught:
        prepare(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        '{"architectures": ["Qwen3ForCausalLM"]}',
        '{"architectures": ["GPT2LMHeadModel"]}',
        '{"architectures": ["ChatGLMModel"]}',
        '{"architectures": ["InternVLChatModel"]}',
        '{"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni"}',
        '{"architectures": ["Gemma3ForConditionalGeneration"]}',
        '{"architectures": null}',
        "{}",
        "[]",
    ],
)
def test_whatever_may_be_a_language_model_is_left_to_the_engine(
    config: str, tmp_path: Path
) -> None:
    assert prepare(folder_of(tmp_path, config)) == tmp_path


def test_a_configuration_that_is_no_json_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        prepare(folder_of(tmp_path, "{,}"))


def test_the_same_weights_are_not_fetched_twice() -> None:
    sizes = {name: len(data) for name, data in FILES.items()}
    assert set(wanted_files(sizes)) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }
    del sizes["model.safetensors"]
    assert "pytorch_model.bin" in wanted_files(sizes)


def command(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """`python -m worker.model` in a folder of its own, with a home of its own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MODEL_", "HF_", "DATA_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "worker.model", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(home), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *arguments: str, **env: str) -> tuple[int | None, str, str]:
    with command(folder, *arguments, **env) as process:
        out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def test_a_local_model_is_told_as_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "config.json").write_text("{}")
    (tmp_path / "merged" / "model.safetensors").touch()
    assert run(tmp_path) == (0, f"{tmp_path}/merged\n", "")


def test_a_bad_setting_is_named(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, MODEL_HUB="nowhere")
    assert (code, out) == (1, "")
    assert "MODEL_HUB" in err
    assert "Traceback" not in err


def test_a_model_is_fetched_and_kept(tmp_path: Path) -> None:
    with hub_serving(FILES) as hub:
        code, out, err = run(tmp_path, MODEL_ID="org/name", HF_ENDPOINT=hub.url)
        assert (code, out) == (0, f"{tmp_path}/model/org/name\n"), err
        assert "fetching org/name from huggingface" in err
        assert "pytorch_model.bin" not in hub.asked
    assert (tmp_path / "model/org/name/model.safetensors").read_bytes() == WEIGHTS
    # No hub is left, and none is needed.
    code, out, err = run(tmp_path, MODEL_ID="org/name", HF_ENDPOINT=hub.url)
    assert (code, out, err) == (0, f"{tmp_path}/model/org/name\n", "")


def wait_for(path: Path, limit_s: float = 30.0) -> None:
    began = time.monotonic()
    while not path.exists():
        assert time.monotonic() - began < limit_s, f"{path} did not come"
        time.sleep(0.05)


def test_a_killed_download_leaves_no_model_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with hub_serving(FILES) as hub:
        hub.stall_after = 1_000_000
        with command(tmp_path, MODEL_ID="org/name", HF_ENDPOINT=hub.url) as process:
            assert hub.stalled.wait(60)
            for name in ("config.json", "tokenizer.json", "README.md"):
                wait_for(tmp_path / "model/org/.name.part" / name)
            process.kill()
        assert not (tmp_path / "model/org/name").exists()
        hub.stall_after = None
        hub.asked.clear()
        code, _, err = run(tmp_path, MODEL_ID="org/name", HF_ENDPOINT=hub.url)
        assert code == 0, err
        assert hub.asked == ["model.safetensors"]  # the rest was there in full
    assert (tmp_path / "model/org/name/model.safetensors").read_bytes() == WEIGHTS
    assert [path.name for path in (tmp_path / "model/org").iterdir() if path.is_dir()] == ["name"]


def test_pull_replaces_the_copy_with_what_the_hub_has_now(tmp_path: Path) -> None:
    with hub_serving(dict(FILES)) as hub:
        assert run(tmp_path, "--pull", MODEL_ID="org/name", HF_ENDPOINT=hub.url)[0] == 0
        hub.files["config.json"] = b'{"model_type": "qwen3"}'
        assert run(tmp_path, "--pull", MODEL_ID="org/name", HF_ENDPOINT=hub.url)[0] == 0
    config = json.loads((tmp_path / "model/org/name/config.json").read_text())
    assert config == {"model_type": "qwen3"}


@pytest.mark.parametrize("model_id", ["org/missing", "org/unreachable"])
def test_what_cannot_be_fetched_is_one_clear_line_that_says_what_to_do(
    tmp_path: Path, model_id: str
) -> None:
    with hub_serving(FILES) as hub:
        url = hub.url if model_id == "org/missing" else "http://127.0.0.1:1"
        code, out, err = run(tmp_path, MODEL_ID=model_id, HF_ENDPOINT=url)
    assert (code, out) == (1, "")
    last = err.strip().splitlines()[-1]
    assert f"MODEL_ID={model_id} could not be fetched from huggingface" in last
    assert f"put the model's folder at model/{model_id}" in last
    assert "Traceback" not in err


def test_an_unreachable_modelscope_is_one_clear_line(tmp_path: Path) -> None:
    env = {"MODEL_HUB": "modelscope", "MODELSCOPE_ENDPOINT": "http://127.0.0.1:1"}
    code, out, err = run(tmp_path, MODEL_ID="org/name", MODELSCOPE_API_MAX_RETRIES="1", **env)
    assert (code, out) == (1, "")
    assert "could not be fetched from modelscope" in err.strip().splitlines()[-1]


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_demo_model_is_made_once_and_a_killed_run_leaves_nothing_half_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "home" / ".cache" / "sluice" / "models" / DEMO_NAME
    with command(tmp_path) as first:
        assert first.stderr is not None
        seen = []
        for line in first.stderr:
            seen.append(line)
            if "unpacking the weights" in line:
                break
        first.kill()
    assert any("unpacking" in line for line in seen), seen
    assert not path.exists()

    with command(tmp_path) as one, command(tmp_path) as two:
        ends = [process.communicate(timeout=250) for process in (one, two)]
        codes = [one.wait(), two.wait()]
    assert codes == [0, 0], ends
    assert [out for out, _ in ends] == [f"{path}\n"] * 2
    assert all(err.strip().endswith(DEMO_NOTICE) for _, err in ends)
    # One made it, the other waited for it.
    assert sorted("unpacking" in err for _, err in ends) == [False, True]
    assert is_model_folder(path)
    assert CHATML_MARK in (path / "chat_template.jinja").read_text()
    assert json.loads((path / "config.json").read_text())["dtype"] == "bfloat16"
    assert [p for p in path.parent.iterdir() if p.is_dir()] == [path]


def test_nothing_is_fetched_where_that_is_forbidden() -> None:
    with pytest.raises(ModelError, match=r"MODEL_ID=org/name is not at model/org/name"):
        chosen(set(), model_id="org/name", skip_model_download=True)
    there = chosen({"model/org/name"}, model_id="org/name", skip_model_download=True)
    assert there == LocalModel(Path("model/org/name"))


def draft(there: set[str], **settings: object) -> HubModel | None:
    paths = {Path(path) for path in there}
    given = {"enable_speculative_decoding": True, "spec_draft_model_id": "org/small", **settings}
    return choose_draft(EngineSettings.load(**given), lambda path: path in paths)


def test_the_draft_model_is_fetched_where_it_is_wanted_and_not_there() -> None:
    path = Path("model/org/small")
    found = draft(set(), spec_draft_model_revision="v2")
    assert found == HubModel(path, "org/small", "huggingface", "v2")
    assert draft({"model/org/small"}) is None
    assert draft(set(), skip_model_download=True) is None
    assert draft(set(), spec_method="ngram") is None
    assert draft(set(), spec_method="suffix") is None
    assert draft(set(), engine="transformers") is None
    assert draft(set(), enable_speculative_decoding=False) is None
    assert draft(set(), spec_draft_model_dir="elsewhere") is None
    with pytest.raises(ModelError, match="SPEC_DRAFT_MODEL_ID"):
        draft(set(), spec_draft_model_id="../x")


def test_a_token_goes_to_its_own_hub_and_is_never_shown() -> None:
    source = chosen(
        set(), model_id="org/name", model_hub="modelscope", modelscope_api_token="secret-1"
    )
    assert isinstance(source, HubModel)
    assert source.token == "secret-1"
    assert "secret-1" not in repr(source)
    other = chosen(set(), model_id="org/name", modelscope_api_token="secret-1")
    assert isinstance(other, HubModel)
    assert other.token is None
