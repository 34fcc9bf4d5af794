"""A damaged last checkpoint stops a resume with one line that names the last valid one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import training_fixture

from deskhand.errors import ConfigError
from deskhand.trainer.checkpoint import verify

FILES = ("model.safetensors", "trainer.safetensors", "config.json", "tokenizer.json", "manifest.json")


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torn") / "run"

    async def train() -> None:
        async with training_fixture.assembled(folder, training_fixture.small(total_steps=2)) as parts:
            await parts.loop.run()

    asyncio.run(train())
    return folder


@pytest.mark.parametrize("name", [*FILES, "all"])
async def test_a_damaged_checkpoint_and_the_last_valid_one_are_named(two_steps, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(two_steps, folder)
    shutil.copytree(two_steps.with_name("run-checkpoint"), tmp_path / "run-checkpoint")
    last, before = folder / "checkpoints" / "step-000002", folder / "checkpoints" / "step-000001"
    if name == "all":
        shutil.rmtree(last)
    else:
        data = (last / name).read_bytes()
        (last / name).write_bytes(data[: len(data) // 2])
    async with training_fixture.assembled(folder, training_fixture.small(total_steps=3)) as parts:
        books = parts.run.episode_counts()
        with pytest.raises(ConfigError) as caught:
            await parts.loop.run()
        assert parts.run.episode_counts() == books
        assert parts.trainer.steps == 0
    assert str(last) in str(caught.value)
    assert f"--set model={before}" in str(caught.value)
    assert "\n" not in str(caught.value)
    verify(before)
    (before / "model.safetensors").write_bytes(b"")
    async with training_fixture.assembled(folder, training_fixture.small(total_steps=3)) as parts:
        with pytest.raises(ConfigError, match=r"--set model=.*step-000000"):
            await parts.loop.run()
