"""Every shipped experiment is planned with a real row of every source that it names, for its real model's screens."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from task_files import SHARED

from deskhand.errors import ConfigError
from deskhand.integrations.areal import launcher
from deskhand.integrations.areal.dataset import suite_rows, task_from_row
from deskhand.integrations.areal.entrypoint import suite_of
from deskhand.integrations.areal.settings import WorkflowSettings, merge_settings, profile_overrides, read_experiment
from deskhand.integrations.areal.validate_budget import (
    desktops_needed,
    find_config_problems,
    find_model_problems,
    image_cost,
    max_images_in_context,
)
from deskhand.integrations.areal.validate_gpus import ModelSize
from deskhand.tasks.formats.file_cache import FileCache

FOLDER = Path(__file__).parents[3] / "configs" / "areal"
FILES = sorted(FOLDER.glob("*.yaml"))
CASES = [(path.stem, profile) for path in FILES for profile in (None, *read_experiment(path)["profiles"])]


@dataclass(frozen=True)
class Checkpoint:
    """What is public about a checkpoint: its family, the sizes of its image processor, and its own size."""

    family: str
    processor: Any
    size: ModelSize


def processor(patch: int, least: int, most: int) -> SimpleNamespace:
    size = {"shortest_edge": least, "longest_edge": most}
    return SimpleNamespace(patch_size=patch, merge_size=2, temporal_patch_size=2, size=size)


CHECKPOINTS = {
    "Qwen/Qwen3-VL-4B-Instruct": Checkpoint("qwen3_vl", processor(16, 65536, 16777216), ModelSize(4.44e9, 151936)),
    "Qwen/Qwen2.5-VL-3B-Instruct": Checkpoint("qwen2_5_vl", processor(14, 3136, 12845056), ModelSize(3.75e9, 151936)),
    "Qwen/Qwen3-0.6B": Checkpoint("qwen3", None, ModelSize(0.6e9, 151936)),
    "tiny": Checkpoint("qwen3_vl", processor(16, 3136, 12845056), ModelSize(1e6, 300)),
}


def resolved(content: dict[str, Any]) -> dict[str, Any]:
    """The experiment with references to other keys filled in, as AReaL's parser does."""

    def look_up(key: str) -> Any:
        value: Any = content
        for part in key.split("."):
            value = value[part]
        return fill(value)

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if isinstance(value, str) and (whole := re.fullmatch(r"\$\{([\w.]+)\}", value)):
            return look_up(whole[1])
        return (
            re.sub(r"\$\{([\w.]+)\}", lambda found: str(look_up(found[1])), value) if isinstance(value, str) else value
        )

    return fill(content)


def experiment(stem: str, profile: str | None, *words: str) -> tuple[dict[str, Any], WorkflowSettings]:
    path = FOLDER / f"{stem}.yaml"
    content = resolved(merge_settings(read_experiment(path), [*profile_overrides(path, profile), *words]))
    return content, WorkflowSettings.of(content["deskhand"]["workflow"], {})


def real_task(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task of the first row of the experiment's own suite, read from real files where it names files."""
    section = dict(content["deskhand"].get("suite") or {})
    if "format" in section:
        section["path"] = SHARED / section["format"]
        if not section["path"].is_dir():
            pytest.skip(f"{section['path']}: no task files of {section['format']} on this machine")
        monkeypatch.setattr(FileCache, "has", lambda cache, address: True)
    found = suite_rows(suite_of(section, Path()), "waa" if section.get("format") == "waa" else "server", "train")
    assert found.rows
    return task_from_row(found.rows[0])


def problems(content: dict[str, Any], settings: WorkflowSettings, task: Any) -> list[str]:
    checkpoint = CHECKPOINTS[content["actor"]["path"]]
    most = settings.agent.max_pixels
    cost = image_cost(checkpoint.processor, task.width, task.height, most) if settings.uses_images else None
    family = checkpoint.family if settings.uses_images else None
    return find_config_problems(content, settings, cost, task.max_steps, family, checkpoint.size)


@pytest.mark.parametrize(("stem", "profile"), CASES)
def test_a_shipped_experiment_fits_real_tasks_of_what_it_names(stem, profile, monkeypatch, capsys):
    content, settings = experiment(stem, profile)
    task = real_task(content, monkeypatch)
    assert problems(content, settings, task) == []
    needed = desktops_needed(content, settings)
    with capsys.disabled():
        print(f"\n{stem} {profile or 'full'}: {task.id}, {task.width}x{task.height}, {needed} desktops: fits")


@pytest.mark.parametrize("stem", [path.stem for path in FILES])
def test_a_shipped_experiment_trains_the_benchmark_in_its_name(stem):
    suite = read_experiment(FOLDER / f"{stem}.yaml")["deskhand"].get("suite", {})
    assert suite.get("format") == (stem.split("_")[0] if stem.split("_")[0] in ("osworld", "waa") else None)


@pytest.mark.parametrize(("stem", "size", "tokens", "unscaled", "turns"), [
    ("osworld_qwen3vl_4b", (1920, 1080), 880, 2040, 15),
    ("waa_qwen25vl_3b", (1920, 1200), 1161, 2967, 15),
    ("waa_qwen25vl_3b_1gpu", (1920, 1200), 1161, 2967, 6),
])  # fmt: skip
def test_the_history_fits_the_context_because_screens_are_scaled(stem, size, tokens, unscaled, turns):
    for words, found in (([], tokens), (["deskhand.workflow.agent.max_pixels=null"], unscaled)):
        content, settings = experiment(stem, None, *words)
        checkpoint = CHECKPOINTS[content["actor"]["path"]]
        cost = image_cost(checkpoint.processor, *size, settings.agent.max_pixels)
        assert cost.tokens == found
        assert max_images_in_context(settings, 15) == turns
        lines = find_config_problems(content, settings, cost, 15, checkpoint.family, checkpoint.size)
        if found == tokens:
            assert lines == []
        else:
            assert f"{turns} screenshots of {unscaled} tokens" in lines[0]
            assert "deskhand.workflow.agent.max_pixels" in lines[0]


def test_screens_are_not_scaled_below_what_the_model_takes():
    with pytest.raises(ConfigError, match=r"agent\.max_pixels: must be at least 131072"):
        image_cost(CHECKPOINTS["Qwen/Qwen3-VL-4B-Instruct"].processor, 1920, 1080, 100_000)


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "one GPU counted twice": (
        "waa_qwen25vl_3b_1gpu",
        ["~rollout.scheduling_strategy", "actor.weight_update_mode=xccl", "enable_offload=false"],
        "rollout 1 + actor 1 are 2 GPUs, cluster.n_nodes x cluster.n_gpus_per_node is 1",
    ),
    "all GPUs counted twice": (
        "osworld_qwen3vl_4b", ["rollout.backend=sglang:d8p1t1", "actor.backend=fsdp:d8p1t1"], "are 16 GPUs"
    ),
    "two nodes with fewer groups than ranks": (
        "osworld_qwen3vl_4b ray-4x8",
        [
            "cluster.n_nodes=2",
            "rollout.backend=sglang:d8p1t1",
            "actor.backend=fsdp:d8p1t1",
            "train_dataset.batch_size=4",
        ],
        "train_dataset.batch_size 4 is below the 8 ranks",
    ),
    "nodes that the scheduler does not start": (
        "osworld_qwen3vl_4b ray-4x8", ["scheduler.type=local"], "scheduler.type local"
    ),
    "a replica larger than a node": (
        "osworld_qwen3vl_4b ray-4x8", ["rollout.backend=sglang:d1p1t16"], "a replica of 16 GPUs"
    ),
    "a critic that has no GPU": (
        "osworld_qwen3vl_4b", ["++critic.backend=fsdp:d1p1t1", "++critic.attn_impl=flash_attention_2"], "critic 1 are 9"
    ),
    "weights that cannot reach a shared device": (
        "waa_qwen25vl_3b_1gpu", ["actor.weight_update_mode=xccl"], "set it to disk"
    ),
    "a shared device that nobody leaves": ("waa_qwen25vl_3b_1gpu", ["enable_offload=false"], "enable_offload"),
    "a server on other workers than the trainer's": (
        "waa_qwen25vl_3b", ["enable_offload=true", "actor.weight_update_mode=disk", "rollout.backend=sglang:d2p1t2",
        "++rollout.scheduling_strategy.type=colocation", "++rollout.scheduling_strategy.target=actor"],
        "2 workers on the 4 of actor",
    ),
    "a target that is not there": (
        "waa_qwen25vl_3b_1gpu", ["rollout.scheduling_strategy.target=trainer"], "must name an engine"
    ),
    "a trainer that is too large": ("osworld_qwen3vl_4b", ["deskhand.device_memory_gib=24"], "actor.backend: weights"),
    "a server that is too large": (
        "osworld_qwen3vl_4b", ["deskhand.device_memory_gib=8", "actor.mb_spec={}"], "rollout.backend: weights"
    ),
    "a host that cannot keep what is offloaded": (
        "waa_qwen25vl_3b_1gpu", ["actor.scheduling_spec.0.mem=32"], "the host keeps"
    ),
    "a nucleus": ("osworld_qwen3vl_4b", ["gconfig.top_p=0.5"], "gconfig.top_p 0.5"),
    "an evaluation without a data set": ("osworld_qwen3vl_4b", ["valid_dataset=null"], "deskhand.valid"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name):
    stem, words, expected = REFUSED[name]
    plain = [word for word in words if ".0." not in word]
    stem, _, profile = stem.partition(" ")
    content, settings = experiment(stem, profile or None, *plain)
    for word in set(words) - set(plain):  # an entry of a list
        content["actor"]["scheduling_spec"][0]["mem"] = yaml.safe_load(word.partition("=")[2])
    checkpoint = CHECKPOINTS[content["actor"]["path"]]
    cost = image_cost(checkpoint.processor, 1920, 1080, settings.agent.max_pixels)
    found = find_config_problems(content, settings, cost, 15, checkpoint.family, checkpoint.size)
    assert any(expected in line for line in found), found


def test_the_command_line_wins_over_the_profile_and_the_profile_over_the_file():
    file = FOLDER / "osworld_qwen3vl_4b.yaml"
    words = ["deskhand.workflow.loop.group_size=6", "train_dataset.batch_size=16", "gconfig.stop=[a, b]"]
    content, settings = experiment(file.stem, "smoke", *words)
    assert (settings.loop.group_size, content["train_dataset"]["batch_size"]) == (6, 16)
    assert content["gconfig"]["stop"] == ["a", "b"]
    assert experiment(file.stem, "smoke")[1].loop.group_size == 2
    assert experiment(file.stem, None)[1].loop.group_size == 8


def test_only_the_model_of_the_profile_is_fetched(monkeypatch, tmp_path):
    fetched: list[str] = []
    monkeypatch.setattr(launcher, "checkpoint_folder", lambda name: fetched.append(name) or Path("/models") / name)
    file = FOLDER / "osworld_qwen3vl_4b.yaml"
    content = read_experiment(file)
    words, merged = launcher._areal_args(file, content, tmp_path, "smoke-text", [])
    assert fetched == ["Qwen/Qwen3-0.6B"]
    assert words[-1] == f"actor.path={merged['actor']['path']}" == "actor.path=/models/Qwen/Qwen3-0.6B"
    fetched.clear()
    launcher._areal_args(file, content, tmp_path, "smoke-text", ["actor.path=/mine"])
    assert fetched == ["/mine"]


def test_a_family_whose_rows_areal_mixes_is_refused(tmp_path):
    assert list(find_model_problems(tmp_path)) == []
    for kind, count in (("qwen3_vl", 0), ("llama", 0), ("qwen3_5", 1), ("qwen3_vl_moe", 1)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        found = list(find_model_problems(tmp_path))
        assert len(found) == count
        assert all("packed rows of Qwen3" in line and "use --trainer local" in line for line in found)
