"""An experiment whose numbers do not add up is told so line by line; those that are shipped add up."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deskhand.areal.experiment import stage_overrides
from deskhand.areal.plan import Picture, desktops_needed, problems, shown_at_once, trajectory_mib
from deskhand.areal.settings import WorkflowSettings
from deskhand.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "areal").glob("*.yaml"))
SMALL = Picture(300, 1 << 20)


def experiment(path: Path = CONFIGS[0]) -> tuple[dict[str, Any], WorkflowSettings]:
    """A shipped file with what refers to other keys filled in."""
    content = yaml.safe_load(path.read_text())
    new = content["gconfig"]["max_new_tokens"]
    workflow = content["deskhand"]["workflow"]
    workflow["model"] = "tiny"
    workflow["agent"] |= {"max_tokens": new} | ({"temperature": 1.0} if "temperature" in workflow["agent"] else {})
    content["actor"]["temperature"] = content["gconfig"]["temperature"]
    content["rollout"]["consumer_batch_size"] = content["train_dataset"]["batch_size"]
    return content, WorkflowSettings.of(workflow, {})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_experiments_add_up(path):
    content, settings = experiment(path)
    assert problems(content, settings, SMALL, 10) == []


CHANGES: dict[str, tuple[list[tuple[str, Any]], str]] = {
    "a normalised reward": ([("actor.reward_norm", {"mean_level": "group"})], "actor.reward_norm"),
    "a normalised advantage": ([("actor.adv_norm", {"mean_level": "batch"})], "actor.adv_norm"),
    "groups of AReaL": ([("gconfig.n_samples", 8)], "gconfig.n_samples"),
    "another temperature": ([("actor.temperature", 0.7)], "actor.temperature"),
    "rows above the budget": ([("actor.mb_spec.max_tokens_per_mb", 100)], "actor.mb_spec.max_tokens_per_mb"),
    "a group that AReaL gives up": ([("rollout.request_timeout", 10)], "rollout.request_timeout"),
    "rows that see each other": ([("actor.attn_impl", "eager")], "actor.attn_impl"),
    "AReaL's own worker": ([("actor.attn_impl", "flash_attention_2"), ("actor.scheduling_spec", [{"cmd": "x"}])], "spec[].cmd"),
    "a proxy that drops pictures": ([("deskhand.kind", "deskhand.areal.agent.OSWorldAgent")], "deskhand.kind"),
    "pixels beyond a worker's memory": ([("train_dataset.batch_size", 4096), ("rollout.consumer_batch_size", 4096)], "spec[].mem"),
    "vllm": ([("rollout.backend", "vllm:d1")], "rollout.backend"),
    "more ranks than groups": ([("actor.backend", "fsdp:d64")], "train_dataset.batch_size"),
    "another consumer": ([("rollout.consumer_batch_size", 77)], "rollout.consumer_batch_size"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_add_up_is_one_line_that_names_its_key(name):
    content, settings = experiment()
    changed = deepcopy(content)
    for key, value in CHANGES[name][0]:
        *path, last = key.split(".")
        place = changed
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    found = problems(changed, settings, SMALL, 10)
    assert len(found) == 1, found
    assert CHANGES[name][1] in found[0]


def test_too_many_desktops_or_screens_are_told_with_what_fits():
    content, settings = experiment(next(path for path in CONFIGS if path.stem == "embedded_tiny_cpu"))
    content["rollout"]["max_concurrent_rollouts"] = 3
    assert desktops_needed(content, settings) == 12
    assert "12 episodes at a time" in problems(content, settings, SMALL, 10)[0]
    large = problems(experiment()[0], experiment()[1], Picture(2000, 1 << 24), 30)
    assert any("show at most" in line for line in large)


def test_pixels_of_a_group_grow_with_its_rows():
    settings = WorkflowSettings.of({"desktops": {"embedded": 4}, "group_size": 4, "agent": {"window": "sliding", "keep": 2}}, {})
    assert shown_at_once(settings, 10) == 2
    assert trajectory_mib(settings, SMALL, 10) == 4 * 9 * 2
    full = settings.model_copy(update={"agent": settings.agent.model_copy(update={"window": "full"})})
    assert trajectory_mib(full, SMALL, 10) == 4 * 1 * 10


def test_a_stage_becomes_overrides_and_an_unknown_one_is_named(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text("stages: {smoke: {total_train_steps: 1, deskhand: {workflow: {group_size: 2, journal: null}}}}\n")
    assert stage_overrides(path, "smoke") == [
        "++total_train_steps=1",
        "++deskhand.workflow.group_size=2",
        "++deskhand.workflow.journal=null",
    ]
    assert stage_overrides(path, None) == stage_overrides(path, "full") == []
    with pytest.raises(ConfigError, match="smoke, full"):
        stage_overrides(path, "nothing")


def test_a_plain_agent_s_groups_and_rewards_are_areal_s():
    content, settings = experiment()
    content["deskhand"]["kind"] = "deskhand.areal.agent.OSWorldAgent"
    content["actor"] |= {"reward_norm": {"mean_level": "group"}, "kl_ctl": 0.01}
    content["gconfig"]["n_samples"] = 3
    words = settings.model_copy(update={"agent": settings.agent.model_copy(update={"screen": "words"})})
    assert problems(content, words, None, 10) == []
    assert desktops_needed(content, words) == 3 * content["rollout"]["max_concurrent_rollouts"]
