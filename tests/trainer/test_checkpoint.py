"""Checkpoints: a resumed run goes on bit-exact, and damaged checkpoints are named and skipped."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_policy import BANNED, build
from test_trainer import samples
from transformers import Qwen3VLForConditionalGeneration

from deskhand.config.trainer import CriticConfig, LoraConfig, PolicyConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer.checkpoint import CheckpointManager, verify
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

CONFIG = TrainerConfig(learning_rate=1e-3, ppo_epochs=2, num_minibatches=2, warmup_steps=3, weight_decay=0.01)


@pytest.fixture
def assets(tmp_path):
    folder = tmp_path / "assets"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


RESUMED = {
    "full": ("float32", {}, {}),
    "adapters": ("float32", {"lora": LoraConfig(rank=2, alpha=4)}, {}),
    "adapters, 4 bits": ("float32", {"lora": LoraConfig(rank=2, alpha=4, load_in_4bit=True)}, {}),
    "half precision": ("bfloat16", {}, {}),
    "half precision, plain operations": ("bfloat16", {}, {"optimizer": "adamw"}),
    "critic on the policy": ("float32", {}, {"algorithm": "ppo"}),
    "critic of its own": ("float32", {}, {"algorithm": "ppo", "critic": CriticConfig(backbone="separate")}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_two_steps_resume_two_steps_equal_four(world, tmp_path, assets, kind):
    dtype, mode, settings = RESUMED[kind]
    if "4 bits" in kind:
        pytest.importorskip("bitsandbytes")
    config, rows = CONFIG.model_copy(update=settings), samples(world)
    rows = [dataclasses.replace(sample, reward=sample.advantage) for sample in rows]
    straight, first, second = (
        Trainer(Policy(build().to(getattr(torch, dtype)), PolicyConfig(**mode), BANNED), config) for _ in range(3)
    )
    for _ in range(4):
        straight.step(rows, world.images)
    for _ in range(2):
        first.step(rows, world.images)
    CheckpointManager(tmp_path / "run").save(first, assets, {"version": 2})
    restored = CheckpointManager(tmp_path / "run").load(second)
    assert restored is not None
    assert (restored.step, restored.state, restored.skipped) == (2, {"version": 2}, [])
    assert (second.steps, second.updates) == (first.steps, first.updates)
    for _ in range(2):
        second.step(rows, world.images)
    for (_, expected, _), (_, found, _) in zip(straight.parts(), second.parts(), strict=True):
        assert same(expected, found)
    assert same(straight.policy.snapshot(), second.policy.snapshot())
    assert not same(straight.policy.snapshot(), first.policy.snapshot())


def test_a_checkpoint_is_an_ordinary_hugging_face_folder(make_policy, world, tmp_path, assets):
    trainer = Trainer(make_policy(), CONFIG)
    trainer.step(samples(world), world.images)
    folder = CheckpointManager(tmp_path / "run").save(trainer, assets)
    loaded, report = Qwen3VLForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert same(dict(loaded.state_dict()), trainer.policy.snapshot())
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"


def test_the_last_checkpoints_and_that_of_step_0_are_kept(make_policy, tmp_path, assets):
    trainer = Trainer(make_policy(), CONFIG)
    checkpoints = CheckpointManager(tmp_path / "run", keep=2)
    for step in range(5):
        trainer.steps = step
        checkpoints.save(trainer, assets)
    assert checkpoints.steps() == [0, 3, 4]
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == ["step-000000", "step-000003", "step-000004"]


def test_the_best_checkpoint_is_kept(make_policy, tmp_path, assets):
    trainer = Trainer(make_policy(), CONFIG)
    checkpoints = CheckpointManager(tmp_path / "run", keep=2)
    assert checkpoints.best() is None
    better = []
    for step, success in enumerate((0.1, 0.5, 0.9, 0.9, float("nan"), 0.3, 0.2)):
        trainer.steps = step
        checkpoints.save(trainer, assets)
        better.append(checkpoints.record_eval(step, success))
    assert better == [True, True, True, False, False, False, False]
    assert (checkpoints.best().step, checkpoints.best().success) == (2, 0.9)
    assert checkpoints.steps() == [0, 2, 5, 6]
    assert not checkpoints.record_eval(2, 1.0), "a step is rated once"
    verify(checkpoints.path(2))
    assert checkpoints.record_eval(0, 0.9), "of equals the earlier, which a run rates last when it rates its beginning"
    assert checkpoints.best().step == 0
    (tmp_path / "run" / "best.json").write_text("{")
    for read in (checkpoints.best, lambda: checkpoints.load(trainer)):  # before a step is trained, not after it
        with pytest.raises(ConfigError, match=r"best\.json: unreadable"):
            read()


def test_no_checkpoint_is_none_and_not_an_error(make_policy, tmp_path):
    assert CheckpointManager(tmp_path / "nowhere").load(Trainer(make_policy())) is None


DAMAGES = {
    "truncated weights": lambda folder: os.truncate(folder / "model.safetensors", 1000),
    "a flipped bit": lambda folder: _flip(folder / "trainer.safetensors"),
    "a lost file": lambda folder: (folder / "config.json").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a manifest": lambda folder: os.truncate(folder / "manifest.json", 40),
    "a manifest of a list": lambda folder: (folder / "manifest.json").write_text('{"format": 1, "files": []}'),
    "a manifest with other counters": lambda folder: _replace(folder / "manifest.json", '"steps": 2', '"steps": 3'),
    "a manifest with another state": lambda folder: _replace(
        folder / "manifest.json", '"state": {', '"state": {"a": 1'
    ),
    "an empty folder": lambda folder: [file.unlink() for file in folder.iterdir()],
}


def _replace(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(make_policy, world, tmp_path, assets, damage):
    checkpoints = CheckpointManager(tmp_path / "run")
    trainer = Trainer(make_policy(), CONFIG)
    trainer.step(samples(world), world.images)
    checkpoints.save(trainer, assets)
    kept = trainer.policy.snapshot()
    trainer.step(samples(world), world.images)
    DAMAGES[damage](checkpoints.save(trainer, assets))
    other = Trainer(make_policy(), CONFIG)
    restored = checkpoints.load(other)
    assert restored is not None
    assert restored.step == 1
    assert len(restored.skipped) == 1
    assert str(checkpoints.path(2)) in restored.skipped[0]
    assert "\n" not in restored.skipped[0]
    assert same(other.policy.snapshot(), kept)
    with pytest.raises(ConfigError, match="step-000002"):
        checkpoints.load(other, step=2)
    shutil.rmtree(checkpoints.path(1))
    with pytest.raises(ConfigError, match="all older checkpoints are damaged"):
        checkpoints.load(other)


def test_a_checkpoint_of_another_model_or_adapter_changes_nothing(make_policy, world, tmp_path, assets):
    trainer = Trainer(make_policy(), CONFIG)
    trainer.step(samples(world), world.images)
    checkpoints = CheckpointManager(tmp_path / "run")
    checkpoints.save(trainer, assets)
    other = Trainer(make_policy(lora=LoraConfig(rank=2)), CONFIG)
    before = other.policy.snapshot()
    with pytest.raises(ConfigError, match=r"policy\.lora"):
        checkpoints.load(other)
    assert same(before, other.policy.snapshot())


def test_saving_again_replaces_and_leftovers_of_a_killed_save_go(make_policy, tmp_path, assets):
    trainer = Trainer(make_policy(), CONFIG)
    checkpoints = CheckpointManager(tmp_path / "run")
    checkpoints.save(trainer, assets, {"try": 1})
    (tmp_path / "run" / ".saving-step-000000").mkdir()
    checkpoints.save(trainer, assets, {"try": 2})
    assert verify(checkpoints.path(0))["state"] == {"try": 2}
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["step-000000"]


def test_an_unwritable_folder_is_one_line(make_policy, tmp_path, assets):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        CheckpointManager(tmp_path / "file" / "run").save(Trainer(make_policy()), assets)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line_and_leaves_the_former_checkpoint(make_policy, world, tmp_path, assets):
    """A file of this process may not grow beyond a bound, which is met as a full disk is: a write fails."""
    trainer, checkpoints = Trainer(make_policy(), CONFIG), CheckpointManager(tmp_path / "run")
    checkpoints.save(trainer, assets)
    trainer.step(samples(world), world.images)
    for bound in (100, 3000, 30_000, 60_000):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, before[1]))
        try:
            with pytest.raises(ConfigError, match=r"step-000001: cannot be written \(.*\); free disk space") as caught:
                checkpoints.save(trainer, assets)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "\n" not in str(caught.value)
        assert checkpoints.steps() == [0]
        verify(checkpoints.path(0))
    verify(checkpoints.save(trainer, assets))


KILLED = """
import sys, pathlib
sys.path[:0] = sys.argv[2:]
import small_policy
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
trainer = Trainer(Policy(small_policy.build(), banned_ids=small_policy.BANNED))
checkpoints = CheckpointManager(pathlib.Path(sys.argv[1]), keep=2)
print("ready", flush=True)
while True:
    checkpoints.save(trainer, pathlib.Path(sys.argv[1]) / "none")
    trainer.steps += 1
"""


def test_a_kill_at_any_moment_leaves_a_valid_checkpoint(make_policy, tmp_path):
    run, checkpoints = tmp_path / "run", CheckpointManager(tmp_path / "run", keep=2)
    command = [sys.executable, "-c", KILLED, str(run), str(Path(__file__).parents[1] / "support")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while checkpoints.steps()[-1:] <= [3] and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05)  # into one of the next checkpoints
        process.send_signal(signal.SIGKILL)
    newest = checkpoints.steps()[-1]
    for step in checkpoints.steps():
        verify(checkpoints.path(step))
    restored = checkpoints.load(Trainer(make_policy()))
    assert restored is not None
    assert restored.step == newest
    assert json.loads((restored.folder / "manifest.json").read_text())["steps"] == newest


def test_a_manifest_is_hashed_as_it_is_read_back(world, tmp_path, assets):
    """JSON has texts as keys, which sort differently, and lists in place of tuples."""
    checkpoints = CheckpointManager(tmp_path / "run")
    state = {"by_step": {10: (1, 2), 9: 0.1, 100: None}}
    folder = checkpoints.save(Trainer(Policy(build(), PolicyConfig(), BANNED), CONFIG), assets, state)
    assert verify(folder)["state"] == {"by_step": {"10": [1, 2], "9": 0.1, "100": None}}
