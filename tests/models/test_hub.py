"""Models on the hub: what is looked at first, and what is downloaded when."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import fake_hub
import pytest
import torch
from command_line import called, with_settings

from deskhand.errors import ConfigError
from deskhand.models import hub
from deskhand.models.architectures import preprocessing_of, values_of
from deskhand.models.load import TINY_FOLDER, check_checkpoint, download_weights, load_processors

CONFIG = Path(__file__).parents[2] / "configs" / "tiny_cpu.yaml"
TRAIN = ["train", str(CONFIG), "{run}", *with_settings(f"model={fake_hub.NAME}")]


@pytest.fixture
def model(tmp_path, monkeypatch) -> fake_hub.FakeHub:
    """The bundled policy, as a model on the hub."""
    return fake_hub.install(monkeypatch, TINY_FOLDER, tmp_path / "cache")


def test_an_estimate_reads_the_descriptions_alone(model) -> None:
    own = json.loads((TINY_FOLDER / "config.json").read_text())
    assert values_of(fake_hub.NAME)["vision_config"] == own["vision_config"]
    assert preprocessing_of(fake_hub.NAME) == preprocessing_of("tiny")
    assert set(model.asked) == {hub.CONFIG_FILES}
    assert not any("*" in name for name in hub.CONFIG_FILES)


def test_tokenizer_and_preprocessing_need_no_weights(model) -> None:
    load_processors(fake_hub.NAME)
    check_checkpoint(fake_hub.NAME, download=False)
    assert not model.has_weights
    check_checkpoint(fake_hub.NAME)
    assert model.has_weights


def test_the_size_is_said_before_the_download_and_not_again(model) -> None:
    said: list[str] = []
    download_weights(fake_hub.NAME, lambda line: said.append(f"{line}, begun: {model.has_weights}"))
    gigabytes = sum(file.stat().st_size for file in TINY_FOLDER.glob("*.safetensors")) / 1e9
    assert len(said) == 1
    assert said[0].startswith(f"downloading {fake_hub.NAME}: {gigabytes:.1f} GB to ")
    assert said[0].endswith("begun: False")
    assert model.has_weights
    download_weights(fake_hub.NAME, said.append)
    assert len(said) == 1


def test_a_disk_without_room_is_one_line_before_the_download(model, monkeypatch) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    with pytest.raises(ConfigError, match=r"the weights have .* GB, but the disk of .* has 0\.0 GB free; free disk"):
        download_weights(fake_hub.NAME, print)
    assert not model.has_weights


def test_a_hub_that_does_not_answer_is_not_asked_for_sizes(model, monkeypatch) -> None:
    def offline(*args, **kwargs):
        raise OSError("offline")

    monkeypatch.setattr(model, "model_info", offline)
    said: list[str] = []
    download_weights(fake_hub.NAME, said.append)
    assert not said
    assert model.has_weights, "the cache may have them"


def test_the_base_model_of_an_adapter_is_downloaded_too(model, tmp_path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": fake_hub.NAME}))
    download_weights(str(adapter), print)
    assert model.has_weights


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_found_before_anything_large_is_downloaded(model, tmp_path, cli_error) -> None:
    words = [word.replace("{run}", str(tmp_path / "run")) for word in TRAIN]
    assert "no CUDA device is available" in cli_error(*words, *with_settings("device=cuda:0"))
    assert set(model.asked) <= {hub.CONFIG_FILES}, "what the agent's settings are chosen by"
    assert not (tmp_path / "run").exists()


def test_a_run_that_does_not_fit_is_refused_before_the_weights(model, tmp_path, cli_error) -> None:
    words = [word.replace("{run}", str(tmp_path / "run")) for word in TRAIN]
    assert "this run needs" in cli_error(*words, *with_settings("device_memory_gib=0.01"))
    assert model.asked
    assert not model.has_weights


def test_desktops_are_opened_before_the_weights_are_downloaded(model, tmp_path, monkeypatch, cli_error) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("prlimit", "setpriv", "true"):
        (programs / program).symlink_to(shutil.which(program) or program)
    monkeypatch.setenv("PATH", str(programs))
    words = [word.replace("{run}", str(tmp_path / "run")) for word in TRAIN]
    assert "apt-get install xvfb" in cli_error(*words)
    assert not model.has_weights


def test_recording_for_a_model_needs_its_tokenizer_alone(model, tmp_path, monkeypatch, capfd) -> None:
    out = tmp_path / "out"
    words = ["record", "--upstream", "http://127.0.0.1:9", "--out", str(out), "--checkpoint", fake_hub.NAME]
    code, _, err = called(monkeypatch, capfd, *words, "--", "true")
    assert code == 0, err
    assert model.asked
    assert not model.has_weights
