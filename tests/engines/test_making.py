"""Building engines from a config; missing parts are reported before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from training_fixture import checkpoint

from deskhand.config.load import load_config
from deskhand.engines.hf import HfEngine
from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.errors import ConfigError
from deskhand.recipes.engine_factory import EngineRequest, build_engine
from deskhand.types import Prompt, Sampling
from deskhand.venvs import newest_venv


def nothing(sha256: str) -> bytes:
    raise KeyError(sha256)


async def build(
    words: list[str], source: str, folder: Path, version: int = 0, environment: dict[str, str] | None = None
):
    config = load_config(None, words)
    request = EngineRequest(
        config=config.engine, checkpoint=source, version=version, device="cpu", dtype="float32", run_dir=folder,
        read_png=nothing, environment=environment or {},
    )  # fmt: skip
    return await build_engine(request)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint(tmp_path_factory.mktemp("checkpoint")))


async def test_the_in_process_engine_has_its_version(source: str, tmp_path: Path) -> None:
    made = await build(["engine.max_model_len=64"], source, tmp_path, 4)
    assert isinstance(made.engine, HfEngine)
    assert made.context_tokens == 64
    done = await made.engine.generate(Prompt((1, 2, 3)), Sampling(3))
    assert done.versions == (4,) * len(done.token_ids)
    await made.engine.close()


async def test_a_remote_endpoint_needs_its_key_and_keeps_it_out_of_errors(source: str, tmp_path: Path) -> None:
    words = [
        "engine.backend=openai",
        "engine.base_url=https://host.invalid/v1",
        "engine.served_model_name=m",
        "engine.api_key_env=THE_KEY",
    ]
    with pytest.raises(ConfigError, match=r"engine\.api_key_env: environment variable THE_KEY is not set"):
        await build(words, source, tmp_path, environment={})
    made = await build(words, source, tmp_path, environment={"THE_KEY": "sk-secret"})
    assert isinstance(made.engine, OpenAIEndpointEngine)
    await made.engine.close()
    with pytest.raises(ConfigError, match="must not contain credentials") as caught:
        await build(
            [*words, "engine.base_url=https://sk-secret:x@host/v1"], source, tmp_path, environment={"THE_KEY": "k"}
        )
    assert "sk-secret" not in str(caught.value)


async def test_vllm_without_an_environment_is_an_error_with_the_command_that_creates_one(
    source: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no environment for vllm; create one with scripts/environment vllm"):
        await build(["engine.backend=vllm"], source, tmp_path, environment={"DESKHAND_VENV_DIR": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"engine\.venv_python: /nowhere/python is not an executable"):
        await build(["engine.backend=vllm", "engine.venv_python=/nowhere/python"], source, tmp_path)


def test_the_newest_complete_environment_of_exactly_that_name_is_used(tmp_path: Path) -> None:
    for index, name in enumerate(("vllm-b", "vllm-a", "vllm-functions-b", "vllm-unfinished", "other-c")):
        (tmp_path / name).mkdir()
        if name != "vllm-unfinished":
            (tmp_path / name / "complete").touch()
            os.utime(tmp_path / name / "complete", (index, index))
    assert newest_venv("vllm", {"DESKHAND_VENV_DIR": str(tmp_path)}) == tmp_path / "vllm-a"
