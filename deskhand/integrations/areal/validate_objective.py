"""Whether an experiment trains what it says. Invariant: what AReaL would do to rewards, advantages or log-probs without a word, and
what of the configuration would be passed over, is a line here, with the key and the mend.

A workflow's `rewards` are advantages (`areal.tensors`), so nothing of AReaL's may change them. A plain agent's are rewards, in
groups of AReaL's, one row for each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from deskhand.integrations.areal.settings import WorkflowSettings, import_by_path

WORKER = "deskhand.integrations.areal.worker"
PACKING = ("flash_attention_2", "flash_attention_3")
WORKFLOW = "deskhand.integrations.areal.workflow.OSWorldWorkflow"
_UNCHANGED = {
    "reward_norm": None, "adv_norm": None, "reward_scaling": 1.0, "reward_bias": 0.0, "discount": 1.0, "gae_lambda": 1.0,
    "overlong_reward_penalty": False, "mask_no_eos_with_zero": False,
}  # fmt: skip
_NOT_PASSED = {
    "greedy": False, "top_k": 100_000_000, "frequency_penalty": 0.0, "min_new_tokens": 0, "ignore_eos": False, "stop": None,
    "stop_token_ids": [],
}  # fmt: skip
"""Of `gconfig`: what the workflow does not ask its server for, with AReaL's defaults."""
_REWARD_CLIP = 20.0
"""AReaL's default."""


def is_agent(experiment: Mapping[str, Any]) -> bool:
    """Whether it names a plain agent, whose groups and rewards are AReaL's business. Raises `ConfigError` for a kind that is not
    there."""
    from deskhand.integrations.areal.workflow import OSWorldWorkflow

    kind = import_by_path(str(experiment.get("deskhand", {}).get("kind") or WORKFLOW))
    return not (isinstance(kind, type) and issubclass(kind, OSWorldWorkflow))


def unsupported_settings(
    experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int, family: str | None
) -> Iterator[str]:
    """One line each. `family`: of the model, None where it is not known."""
    actor, asked = experiment["actor"], experiment["gconfig"]
    if actor.get("temperature", 1.0) != asked.get("temperature", 1.0):
        yield "actor.temperature differs from gconfig.temperature: log-probs would be of another distribution; write the same"
    yield from _agent(experiment, settings) if is_agent(experiment) else _workflow(experiment, settings, max_steps)
    yield from _workers(experiment, family)


def _workflow(experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int) -> Iterator[str]:
    actor, asked = experiment["actor"], experiment["gconfig"]
    for key, value in _UNCHANGED.items():
        if actor.get(key, value) != value:
            shown = "null" if value is None else value
            yield f"actor.{key} is {actor[key]}: the workflow has compared the group already; write {shown}"
    if asked.get("n_samples", 1) != 1:
        yield f"gconfig.n_samples is {asked['n_samples']}: the group is deskhand.workflow.group_size; write 1"
    if actor.get("kl_ctl"):
        yield "actor.kl_ctl is not 0: AReaL adds it to the rewards, which are advantages; write 0"
    if experiment.get("critic"):
        yield "critic: its values would be taken from rewards that are advantages already; write null"
    reply = int(asked.get("max_new_tokens") or settings.agent.max_new_tokens)
    largest, cut = largest_advantage(settings, max_steps * reply), float(actor.get("reward_clip", _REWARD_CLIP))
    if largest > cut:
        yield (
            f"actor.reward_clip {cut:g} would cut advantages, which are weighed by length and may reach {largest:.0f}; write "
            f"{10 ** math.ceil(math.log10(largest)):.1f}"
        )
    for key, value in _NOT_PASSED.items():
        if asked.get(key, value) != value:
            yield f"gconfig.{key} is {asked[key]}: the workflow does not ask its server for it; leave it out"
    if actor.get("use_lora"):
        yield "actor.use_lora: the workflow asks its server for no adapter; write false"
    if settings.algorithm == "gspo" and actor.get("importance_sampling_level", "token") != "sequence":
        yield "deskhand.workflow.algorithm gspo with ratios of tokens is GRPO; write actor.importance_sampling_level: sequence"
    if settings.algorithm == "dr_grpo" and settings.normalize_by_episode:
        yield (
            "deskhand.workflow.weigh_episodes divides by the length of an episode, which dr_grpo is there to avoid; write false, "
            "or algorithm: grpo"
        )


def largest_advantage(settings: WorkflowSettings, most_tokens: int) -> float:
    """No advantage of a group is larger, with rewards from 0 to 1 and at most so many sampled tokens in an episode.

    One of n equals is at most sqrt(n - 1) deviations from their mean, and an episode of one token is weighed with the mean length.
    """
    return math.sqrt(max(1, settings.group_size - 1)) * (most_tokens if settings.normalize_by_episode else 1)


def _agent(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    actor = experiment["actor"]
    if settings.agent.temperature != actor.get("temperature", 1.0):
        yield (
            f"deskhand.workflow.agent.temperature {settings.agent.temperature:g} differs from actor.temperature: the agent asks "
            "with it, and log-probs would be of another distribution; write the same"
        )
    for name in ("reward_norm", "adv_norm"):
        levels = actor.get(name) or {}
        if "group" in (levels.get("mean_level"), levels.get("std_level")):
            yield (
                f"actor.{name} by groups: AReaL 1.0.4 takes every group_size rows for a group, and an agent's episode has a row "
                f"for each call; write {name}: {{mean_level: batch, std_level: batch}}, or train {WORKFLOW}"
            )
    if actor.get("kl_ctl") and not experiment.get("ref"):
        yield "actor.kl_ctl without a ref: AReaL takes 0 for the log-probs of the model that is missing; write 0, or a ref"


def _workers(experiment: Mapping[str, Any], family: str | None) -> Iterator[str]:
    """Each engine that computes log-probs or values: packed rows apart, and pictures where servers place them."""
    ray = experiment.get("scheduler", {}).get("type") == "ray"
    used = ["actor", "critic", *(["ref"] if experiment["actor"].get("kl_ctl") else [])]
    for name in [name for name in used if experiment.get(name)]:
        engine = experiment[name]
        kind = engine.get("attn_impl", PACKING[0])
        forked = (engine.get("scheduling_strategy") or {}).get(
            "type"
        ) == "colocation"  # by `areal.launch`, as our worker
        ours = not ray and (forked or is_deskhand_worker(engine))
        if kind not in PACKING and not (kind == "sdpa" and ours):
            mend = f"on a processor sdpa with {name}.scheduling_spec[].cmd: python3 -m {WORKER}"
            other = ", which Ray's workers do not take" if ray else ""
            yield f"{name}.attn_impl {kind}: packed rows would see each other; write {PACKING[0]}, or {mend}{other}"
        if engine.get("enable_tree_training") and family is not None:
            yield f"{name}.enable_tree_training: AReaL 1.0.4 leaves pictures out of its trees of rows; write false"
    if ray and family == "qwen2_5_vl":
        yield (
            "scheduler.type ray starts AReaL's own workers, whatever cmd says, and they place pictures of Qwen2.5-VL elsewhere "
            "than servers do (transformers 5.3); write local or slurm"
        )


def is_deskhand_worker(engine: Mapping[str, Any]) -> bool:
    """Whether an engine's workers are `areal.worker`."""
    commands = [str(one.get("cmd") or "") for one in engine.get("scheduling_spec") or ()]
    return bool(commands) and all(WORKER in command for command in commands)
