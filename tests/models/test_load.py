"""A checkpoint loads completely or is rejected with one line that names the file and the fix."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import IMAGE, save_checkpoint

from deskhand.errors import ConfigError
from deskhand.models import load as load_module
from deskhand.models.architectures import build
from deskhand.models.load import load


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, "qwen3_vl", seed=3)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "copy"))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe"])
def test_all_families_load_complete_by_the_same_path(family: str, tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, family)
    loaded = load(str(tmp_path))
    assert loaded.family == family
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    assert loaded.model.lm_head.weight is loaded.model.model.language_model.embed_tokens.weight
    assert loaded.tokenizer.convert_tokens_to_ids("<|image_pad|>") == loaded.image_token_id == IMAGE
    pixels = loaded.image_processor(Image.new("RGB", (48, 32)), return_tensors="np")
    assert pixels["image_grid_thw"].tolist() == [[1, 8, 12]]
    assert pixels["pixel_values"].dtype == np.float32
    reference = saved.state_dict()
    assert all(torch.equal(value, reference[name]) for name, value in loaded.model.state_dict().items())


def test_the_weights_have_the_requested_type(good: Path) -> None:
    assert load(str(good), dtype="bfloat16").model.dtype == torch.bfloat16


def edit(name: str, **changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:1000])


def grow(key: str, by: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        text = json.loads((folder / "config.json").read_text())["text_config"]
        edit("config.json", text_config={**text, key: text[key] + by})(folder)

    return apply


def _index_without_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}})
    )


@pytest.mark.parametrize(
    ("damage", "file", "words"),
    [
        (remove("config.json"), "config.json", "missing"),
        (cut("tokenizer.json"), "tokenizer.json", "unreadable"),
        (edit("config.json", model_type="llama"), "config.json", "'llama'"),
        (remove("tokenizer.json"), "tokenizer.json", "missing"),
        (remove("preprocessor_config.json"), "preprocessor_config.json", "missing"),
        (edit("preprocessor_config.json", patch_size=14), "preprocessor_config.json", "got 14"),
        (remove("model.safetensors"), "model.safetensors", "missing"),
        (cut("model.safetensors"), "model.safetensors", "unreadable weights"),
        (_index_without_shards, "model-00001-of-00001.safetensors", "finish the download"),
        (grow("intermediate_size", 8), "copy", "config.json"),
        (grow("num_hidden_layers", 1), "copy", "tensors missing"),
        (edit("config.json", image_token_id=0), "tokenizer.json", "<|image_pad|>"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(
    folder: Path, damage: Callable[[Path], None], file: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    with pytest.raises(ConfigError) as raised:
        load(str(folder))
    message = str(raised.value)
    assert "\n" not in message
    assert file in message.split(":")[0]
    assert words in message
    assert capfd.readouterr() == ("", ""), "the message is all there is to read"


def test_wrong_names_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load(str(tmp_path / "nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a file"):
        load(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        load("tiny", dtype="int8")
    monkeypatch.setattr(load_module, "TINY_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="install the package again"):
        load("tiny")


def test_an_unknown_device_is_one_line(good: Path) -> None:
    with pytest.raises(ConfigError, match="device 'quantum'"):
        load(str(good), device="quantum")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            load(str(good), device="cuda:0")


@pytest.mark.parametrize("kind", ["chunked_attention", "sliding_attention"])
def test_layers_of_another_kind_are_refused(tmp_path: Path, kind: str) -> None:
    save_checkpoint(tmp_path, "qwen3_5")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit("config.json", text_config={**text, "layer_types": [kind, *text["layer_types"][1:]]})(tmp_path)
    with pytest.raises(ConfigError, match=rf"^[^\n]*config\.json: [^\n]*({kind}|sliding-window)[^\n]*$"):
        load(str(tmp_path))


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "qwen3_5")
    values = json.loads((tmp_path / "config.json").read_text())
    values["text_config"]["layer_types"] = ["linear_attention"] * 4
    build(values).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"^[^\n]*config\.json: layer_types: no full_attention is not supported"):
        load(str(tmp_path))


def test_experts_that_transformers_would_read_wrongly_are_refused(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path, "qwen3_vl_moe")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit("config.json", text_config={**text, "norm_topk_prob": False})(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json: norm_topk_prob must be true"):
        load(str(tmp_path))
    values = model.config.to_dict()
    values["text_config"] |= {"moe_intermediate_size": values["text_config"]["hidden_size"] // 2}
    build(values).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"experts\.gate_up_proj is square, so its layout is unknown"):
        load(str(tmp_path))


def test_an_unreachable_hub_id_is_one_line() -> None:
    program = (
        "import os; os.environ['HF_HUB_OFFLINE'] = '1'\n"
        "from deskhand.models.load import load\n"
        "from deskhand.errors import ConfigError\n"
        "try: load('nobody/nothing-of-this-name')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("nobody/nothing-of-this-name: no local folder, and the download failed")
    assert done.stdout.count("\n") == 1


def test_the_module_imports_without_torch() -> None:
    program = "import sys, deskhand.models.load; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
