"""An experiment whose numbers do not add up is told so line by line; those that are shipped add up."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from deskhand.algorithms.grpo import group_advantages
from deskhand.errors import ConfigError
from deskhand.integrations.areal.settings import WorkflowSettings, profile_overrides
from deskhand.integrations.areal.tensors import _scales
from deskhand.integrations.areal.validate_budget import (
    ImageCost,
    desktops_needed,
    find_config_problems,
    is_agent,
    max_images_in_context,
    trajectory_mib,
)
from deskhand.integrations.areal.validate_objective import find_objective_problems, largest_advantage

CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "areal").glob("*.yaml"))
TINY = next(path for path in CONFIGS if path.stem == "tiny_cpu")
SMALL = ImageCost(300, 1 << 20)


def experiment(path: Path = TINY) -> tuple[dict[str, Any], WorkflowSettings]:
    """A shipped file with what refers to other keys filled in."""
    content = yaml.safe_load(path.read_text())
    new = content["gconfig"]["max_new_tokens"]
    workflow = content["deskhand"]["workflow"]
    workflow["model"] = "tiny"
    workflow["agent"] |= {"max_new_tokens": new} | ({"temperature": 1.0} if "temperature" in workflow["agent"] else {})
    content["actor"]["temperature"] = content["gconfig"]["temperature"]
    content["rollout"]["consumer_batch_size"] = content["train_dataset"]["batch_size"]
    return content, WorkflowSettings.of(workflow, {})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_experiments_add_up(path):
    content, settings = experiment(path)
    assert find_config_problems(content, settings, SMALL, 10) == []


def laid_over(content: dict[str, Any], profile: dict[str, Any]) -> None:
    for key, value in profile.items():
        if isinstance(value, dict):
            laid_over(content.setdefault(key, {}), value)
        else:
            content[key] = value


CLUSTER = next(path for path in CONFIGS if path.stem == "osworld_qwen3vl_4b")


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("scheduler", ["ray", "slurm"])
def test_profiles_for_more_nodes_add_up(scheduler, nodes):
    profile = yaml.safe_load(CLUSTER.read_text())["profiles"][f"{scheduler}-{nodes}x8"]
    content, settings = experiment(CLUSTER)
    laid_over(content, profile)
    content["rollout"]["consumer_batch_size"] = content["train_dataset"]["batch_size"]
    assert find_config_problems(content, settings, SMALL, 10, "qwen3_vl") == []
    assert content["scheduler"]["type"] == scheduler
    gpus = sum(int(content[role]["backend"].split(":d")[1].split("p")[0]) for role in ("actor", "rollout"))
    assert gpus == content["cluster"]["n_nodes"] * content["cluster"]["n_gpus_per_node"] == 8 * nodes
    assert desktops_needed(content, settings) == 64 * nodes


CHANGES: dict[str, tuple[list[tuple[str, Any]], str]] = {
    "a normalized reward": ([("actor.reward_norm", {"mean_level": "group"})], "actor.reward_norm"),
    "a normalized advantage": ([("actor.adv_norm", {"mean_level": "batch"})], "actor.adv_norm"),
    "groups of AReaL": ([("gconfig.n_samples", 8)], "gconfig.n_samples"),
    "another temperature": ([("actor.temperature", 0.7)], "actor.temperature"),
    "advantages that are cut": ([("actor.reward_clip", 20.0)], "actor.reward_clip"),
    "values beside advantages": ([("critic", {"path": "x"})], "critic: "),
    "sampling that is not passed on": ([("gconfig.top_k", 50)], "gconfig.top_k"),
    "replies that are all the same": ([("gconfig.greedy", True)], "gconfig.greedy"),
    "an adapter that nobody samples": ([("actor.use_lora", True)], "rollout.use_lora"),
    "an adapter sent by xccl": (
        [("actor.use_lora", True), ("rollout.use_lora", True), ("actor.weight_update_mode", "xccl")],
        "actor.weight_update_mode",
    ),
    "an adapter on another trainer": (
        [("actor.use_lora", True), ("rollout.use_lora", True), ("actor.backend", "megatron:d1")],
        "actor.backend",
    ),
    "an adapter without a name": (
        [("actor.use_lora", True), ("rollout.use_lora", True), ("gconfig.lora_name", "")],
        "gconfig.lora_name",
    ),
    "a penalty weighed by length": (
        [("actor.kl_ctl", 0.1), ("ref", {"attn_impl": "flash_attention_2"})],
        "deskhand.workflow.normalize_by_episode",
    ),
    "rows read as one reply": ([("actor.mask_no_eos_with_zero", True)], "actor.mask_no_eos_with_zero"),
    "rows above the budget": ([("actor.mb_spec.max_tokens_per_mb", 100)], "actor.mb_spec.max_tokens_per_mb"),
    "a group that AReaL gives up": ([("rollout.request_timeout", 10)], "rollout.request_timeout"),
    "rows that see each other": ([("actor.attn_impl", "eager")], "actor.attn_impl"),
    "AReaL's own worker": (
        [("actor.attn_impl", "flash_attention_2"), ("actor.scheduling_spec", [{"cmd": "x"}])],
        "spec[].cmd",
    ),
    "a proxy that drops pictures": (
        [
            ("deskhand.workflow_class", "deskhand.integrations.areal.agent.OSWorldAgent"),
            ("rollout.agent", {"engine_max_tokens": 4096}),
        ],
        "deskhand.workflow_class",
    ),
    "pixels beyond a worker's memory": (
        [("train_dataset.batch_size", 4096), ("rollout.consumer_batch_size", 4096)],
        "spec[].mem",
    ),
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
    found = find_config_problems(changed, settings, SMALL, 10)
    assert len(found) == 1, found
    assert CHANGES[name][1] in found[0]


LORA: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "right": ({}, {}, None),
    "trained alone": ({}, {"use_lora": False}, "rollout.use_lora is False, actor.use_lora True"),
    "sampled alone": ({"use_lora": False}, {}, "rollout.use_lora is True, actor.use_lora False"),
    "in the vision tower": ({"target_modules": ["all-linear"]}, {}, "actor.target_modules"),
    "sent by xccl": ({"weight_update_mode": "xccl"}, {}, "actor.weight_update_mode"),
    "of another name": ({}, {"lora_name": "other"}, "rollout.lora_name other"),
    "of a service that names none": ({}, {"_version": "v2"}, "rollout._version v2"),
}


@pytest.mark.parametrize("workflow", ["workflow.OSWorldWorkflow", "agent.OSWorldAgent", "agent.WAADesktopWorkflow"])
@pytest.mark.parametrize("name", LORA)
def test_adapters_follow_the_same_rules_in_workflows_and_plain_agents(name, workflow):
    content, settings = experiment()
    actor, rollout, message = LORA[name]
    content["deskhand"]["workflow_class"] = f"deskhand.integrations.areal.{workflow}"
    content["actor"] |= {"use_lora": True, "target_modules": ["q_proj", "v_proj"], **actor}
    content["rollout"] |= {"use_lora": True, "agent": {"engine_max_tokens": 4096}, **rollout}
    found = find_config_problems(content, settings, SMALL, 10, "qwen3_vl", exports_images=True)
    assert len(found) == (message is not None), found
    assert message is None or found[0].startswith(message)


@pytest.mark.parametrize(
    ("family", "modules", "adapts_vision"),
    [
        ("qwen3_vl", [], True),
        ("qwen3_vl", ["all-linear"], True),
        ("qwen3_vl", ["q_proj", "down_proj"], False),
        ("qwen3_vl", ["q_proj", "linear_fc1"], True),
        ("qwen2_5_vl", ["q_proj", "down_proj"], True),
        ("qwen2_5_vl", ["q_proj", "o_proj"], False),
        (None, [], False),
    ],
)
def test_an_adapter_covers_no_layer_of_the_vision_tower(family, modules, adapts_vision):
    content, settings = experiment()
    content["actor"] |= {"use_lora": True, "target_modules": modules}
    content["rollout"]["use_lora"] = True
    found = find_config_problems(content, settings, SMALL, 10, family)
    assert [line[: line.index(" ")] for line in found] == ["actor.target_modules"] * adapts_vision


def test_a_plain_agent_under_ray_is_told_what_areal_would_say():
    content, settings = experiment()
    content["scheduler"]["type"] = "ray"
    content["deskhand"]["workflow_class"] = "deskhand.integrations.areal.agent.OSWorldAgent"
    found = find_config_problems(content, settings, SMALL, 10)
    assert any("Proxy workers not supported with RayScheduler" in line for line in found)


AREAL = {"advantages": "areal", "normalize_by_episode": False}
CRITIC = {"path": "tiny", "attn_impl": "flash_attention_2"}
TEXT = {**AREAL, "agent": {"observation": "a11y_tree"}}
OBJECTIVES: dict[str, tuple[dict[str, Any], list[tuple[str, Any]], str | None]] = {
    "rewards of a text model": (TEXT, [("actor.adv_norm", {"mean_level": "batch"})], None),
    "rewards less the batch's mean": (AREAL, [("actor.adv_norm", {"mean_level": "batch"})], None),
    "a penalty in the rewards": (
        TEXT,
        [("actor.adv_norm", {"mean_level": "batch"}), ("actor.kl_ctl", 0.1), ("ref", CRITIC)],
        None,
    ),
    "a penalty behind advantages": ({"normalize_by_episode": False}, [("actor.kl_ctl", 0.1), ("ref", CRITIC)], None),
    "an adapter": ({}, [("actor.use_lora", True), ("rollout.use_lora", True)], None),
    "a vision model's critic": (
        AREAL,
        [("critic", CRITIC), ("actor.adv_norm", {"mean_level": "batch"})],
        "critic: AReaL 1.0.4 adds",
    ),
    "nothing to compare with": (AREAL, [], "nothing is subtracted"),
    "AReaL's groups": (
        {**TEXT},
        [("actor.adv_norm", {"mean_level": "batch"}), ("actor.reward_norm", {"mean_level": "group"})],
        "actor.reward_norm",
    ),
    "rewards weighed by length": (
        {**TEXT, "normalize_by_episode": True},
        [("actor.adv_norm", {"mean_level": "batch"})],
        "normalize_by_episode",
    ),
    "a discount over several rows": (
        TEXT,
        [("actor.adv_norm", {"mean_level": "batch"}), ("actor.discount", 0.9)],
        "actor.discount",
    ),
    "a discount over one row": (
        {**AREAL, "agent": {"observation": "a11y_tree", "history": "full"}},
        [("actor.adv_norm", {"mean_level": "batch"}), ("actor.discount", 0.9)],
        None,
    ),
    "rewards that are cut": (
        TEXT,
        [("actor.adv_norm", {"mean_level": "batch"}), ("actor.reward_scaling", 10.0), ("actor.reward_clip", 5.0)],
        "actor.reward_clip",
    ),
    "a penalty against nothing": ({"normalize_by_episode": False}, [("actor.kl_ctl", 0.1)], "without a ref"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_that_areal_computes_right_are_accepted_and_others_named(name):
    told, changes, message = OBJECTIVES[name]
    content, _ = experiment()
    content["actor"]["path"] = "tiny"
    for key, value in changes:
        *path, last = key.split(".")
        place = content
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    settings = WorkflowSettings.of({**content["deskhand"]["workflow"], **told}, {})
    found = list(find_objective_problems(content, settings, 10))
    assert len(found) == (message is not None), found
    assert message is None or message in found[0]


@pytest.mark.parametrize(
    ("backend", "exports", "refused"), [("sglang:d1", True, 0), ("sglang:d1", False, 1), ("vllm:d1", True, 0)]
)
def test_a_plain_agent_may_look_where_the_proxy_exports_images(backend, exports, refused):
    content, settings = experiment()
    content["deskhand"]["workflow_class"] = "deskhand.integrations.areal.agent.WAADesktopWorkflow"
    content["rollout"] |= {"agent": {"engine_max_tokens": 4096}, "backend": backend}
    assert len(find_config_problems(content, settings, SMALL, 10, exports_images=exports)) == refused


def test_too_many_desktops_or_screenshots_are_reported_with_what_fits():
    content, settings = experiment(TINY)
    content["rollout"]["max_concurrent_rollouts"] = 3
    assert desktops_needed(content, settings) == 12
    assert "12 concurrent episodes" in find_config_problems(content, settings, SMALL, 10)[0]
    large = find_config_problems(experiment()[0], experiment()[1], ImageCost(2000, 1 << 24), 30)
    assert any("use at most" in line for line in large)


def test_pixels_of_a_group_grow_with_its_rows():
    told = {"desktops": {"local": 4}, "loop": {"group_size": 4}, "agent": {"history": "sliding", "sliding_turns": 2}}
    settings = WorkflowSettings.of(told, {})
    assert max_images_in_context(settings, 10) == 2
    assert trajectory_mib(settings, SMALL, 10) == 4 * 9 * 2
    full = settings.model_copy(update={"agent": settings.agent.model_copy(update={"history": "full"})})
    assert trajectory_mib(full, SMALL, 10) == 4 * 1 * 10


def test_a_profile_becomes_overrides_and_an_unknown_one_is_named(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(
        "profiles: {smoke: {total_train_steps: 1, deskhand: {workflow: {loop: {group_size: 2}, episode_dir: null}}}}\n"
    )
    values = ["total_train_steps=1", "deskhand.workflow.loop.group_size=2", "deskhand.workflow.episode_dir=null"]
    assert profile_overrides(path, "smoke") == [f"++{value}" for value in values]
    assert profile_overrides(path, None) == profile_overrides(path, "full") == []
    with pytest.raises(ConfigError, match="smoke, full"):
        profile_overrides(path, "nothing")


def test_a_plain_agent_s_groups_and_rewards_are_areal_s():
    content, settings = experiment()
    content["deskhand"]["workflow_class"] = "deskhand.integrations.areal.agent.OSWorldAgent"
    content["actor"] |= {"reward_norm": {"mean_level": "batch"}, "kl_ctl": 0.01, "reward_clip": 20.0}
    content["gconfig"]["n_samples"] = 3
    content["ref"] = {"attn_impl": "sdpa", "scheduling_strategy": {"type": "colocation", "target": "actor"}}
    content["rollout"]["agent"] = {"engine_max_tokens": 4096}
    words = settings.model_copy(update={"agent": settings.agent.model_copy(update={"observation": "a11y_tree"})})
    assert find_config_problems(content, words, None, 10) == []
    assert desktops_needed(content, words) == 3 * content["rollout"]["max_concurrent_rollouts"]


AGENT_CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "groups of rows": ({"reward_norm": {"mean_level": "group", "group_size": 4}}, {}, "actor.reward_norm: AReaL"),
    "groups of rows' advantages": (
        {"adv_norm": {"mean_level": "batch", "std_level": "group"}},
        {},
        "actor.adv_norm: AReaL",
    ),
    "no model to stay near": ({"kl_ctl": 0.1}, {}, "actor.kl_ctl: without a ref"),
    "a critic whose rows see each other": ({}, {"critic": {"attn_impl": "sdpa"}}, "critic.attn_impl sdpa"),
    "rows without bounds": ({}, {"rollout": {"agent": {}}}, "rollout.agent.engine_max_tokens is None"),
    "another temperature": (
        {"temperature": 0.7},
        {"gconfig": {"temperature": 0.7}},
        "deskhand.workflow.agent.temperature 1",
    ),
}


@pytest.mark.parametrize("name", AGENT_CHANGES)
def test_what_areal_would_do_to_a_plain_agent_s_rows_is_one_line(name):
    content, settings = experiment()
    actor, beside, word = AGENT_CHANGES[name]
    content["deskhand"]["workflow_class"] = "deskhand.integrations.areal.agent.OSWorldAgent"
    content["actor"] |= actor
    content["rollout"]["agent"] = {"engine_max_tokens": 4096}
    for key, value in beside.items():
        content[key] = content.get(key, {}) | value
    words = settings.model_copy(update={"agent": settings.agent.model_copy(update={"observation": "a11y_tree"})})
    found = find_config_problems(content, words, None, 10)
    assert len(found) == 1, found
    assert word in found[0]


def test_an_algorithm_is_what_it_is_called():
    content, settings = experiment()

    def problems(**changes: Any) -> list[str]:
        return find_config_problems(content, settings.model_copy(update=changes), SMALL, 10)

    (line,) = problems(algorithm="gspo")
    assert "importance_sampling_level: sequence" in line
    (line,) = problems(algorithm="dr_grpo")
    assert "normalize_by_episode" in line
    assert problems(algorithm="dr_grpo", normalize_by_episode=False) == []


def test_a_workflow_is_known_by_what_it_is_and_not_by_its_name():
    assert not is_agent({"deskhand": {"workflow_class": "areal_workflows.PaintedWorkflow"}})
    assert is_agent({"deskhand": {"workflow_class": "deskhand.integrations.areal.agent.WAADesktopWorkflow"}})
    with pytest.raises(ConfigError, match="cannot be imported"):
        is_agent({"deskhand": {"workflow_class": "deskhand.integrations.areal.agent.NothingWorkflow"}})


def test_images_of_qwen2_5_vl_need_deskhands_workers():
    content, settings = experiment(next(path for path in CONFIGS if path.stem == "waa_qwen25vl_3b"))
    for scheduler in ("local", "ray", "slurm"):
        content["scheduler"]["type"] = scheduler
        assert find_config_problems(content, settings, SMALL, 10, "qwen2_5_vl") == []
    content["actor"]["enable_tree_training"] = True
    (line,) = find_config_problems(content, settings, SMALL, 10, "qwen3_vl")
    assert "actor.enable_tree_training" in line


def test_no_advantage_is_larger_than_what_the_planner_counts_with():
    """One short success among long failures, the worst case; AReaL's default would cut 556 to 20."""
    settings = WorkflowSettings.of({"desktops": {"local": 8}, "loop": {"group_size": 8}}, {})
    tokens = [2, *[15 * 32] * 7]
    advantages = group_advantages([1.0, *[0.0] * 7])
    samples = [
        SimpleNamespace(episode_id=str(n), sequence=SimpleNamespace(loss_mask=[True] * count))
        for n, count in enumerate(tokens)
    ]
    weighed = [abs(a * scale) for a, scale in zip(advantages, _scales(samples), strict=True)]  # pyright: ignore[reportArgumentType]
    assert 20 < max(weighed) <= largest_advantage(settings, 15 * 32)
    assert largest_advantage(settings.model_copy(update={"normalize_by_episode": False}), 15 * 32) == pytest.approx(
        7**0.5
    )


def test_an_agent_class_is_refused_with_the_hook_to_use_instead():
    with pytest.raises(ConfigError, match=r"deskhand\.workflow\.agent: .*override `make_agent`"):
        WorkflowSettings.of({"desktops": {"local": 1}, "agent": {"class": "my_agent.py:MyAgent"}}, {})
