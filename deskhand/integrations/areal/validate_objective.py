"""Checks that AReaL optimizes what `OSWorldWorkflow` hands it: advantages or rewards, KL, critic; and LoRA of any
workflow.

Called by `validate_budget`. The rules reflect AReaL 1.0.4, as `tests/contract/areal/test_areal_objectives.py` runs it:

- `advantages: group`: `rewards` are advantages, so that AReaL must not scale, normalize or discount them. With `kl_ctl`
  AReaL adds the penalty of each token behind them, as it does for its own GRPO after `reward_norm`.
- `advantages: areal`: `rewards` are rewards, at the last token of each row; AReaL applies `discount`, `gae_lambda` and
  `adv_norm`. Every row of an episode ends with the episode's reward, which without discount is the return of each of
  its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from deskhand.integrations.areal.settings import WorkflowSettings

_REQUIRED_VALUES = {
    "reward_norm": None, "adv_norm": None, "reward_scaling": 1.0, "reward_bias": 0.0, "discount": 1.0,
    "gae_lambda": 1.0,
}  # fmt: skip
"""Values of the actor if `rewards` are advantages."""
_OFF = ("overlong_reward_penalty", "mask_no_eos_with_zero")
"""Read the length or the last token of a row as those of one reply; a row has several."""
_REWARD_CLIP = 20.0
"""AReaL's default."""
_LANGUAGE = {
    "qwen2_5_vl": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "qwen3_vl": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""Linear layers of the language model whose names the vision tower does not have, by family."""


def find_objective_problems(experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int) -> Iterator[str]:
    """Yield one line per problem of an `OSWorldWorkflow`, with key and fix."""
    for key in _OFF:
        if experiment["actor"].get(key):
            yield f"actor.{key}: reads a row as one reply, but it has one for each turn; set it to false"
    if settings.advantages == "group":
        yield from _group(experiment, settings, max_steps)
    else:
        yield from _areal(experiment, settings)
    yield from _kl(experiment, settings)


def largest_advantage(settings: WorkflowSettings, max_tokens: int) -> float:
    """Return an upper bound of advantages, with rewards in [0, 1] and at most `max_tokens` sampled tokens per
    episode.

    Among n members, one is at most sqrt(n - 1) standard deviations from the mean; a one-token episode is weighted by
    the mean length.
    """
    return math.sqrt(settings.loop.group_size - 1) * (max_tokens if settings.normalize_by_episode else 1)


def _group(experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int) -> Iterator[str]:
    actor = experiment["actor"]
    for key, value in _REQUIRED_VALUES.items():
        if actor.get(key, value) != value:
            shown = "null" if value is None else value
            yield (
                f"actor.{key} is {actor[key]}: the workflow already computes advantages; set it to {shown}, or "
                "deskhand.workflow.advantages to areal"
            )
    if experiment.get("critic"):
        yield "critic: the rewards are already advantages; set it to null, or deskhand.workflow.advantages to areal"
    reply = int(experiment["gconfig"].get("max_new_tokens") or settings.agent.max_new_tokens)
    largest, cut = largest_advantage(settings, max_steps * reply), float(actor.get("reward_clip", _REWARD_CLIP))
    if largest > cut:
        yield (
            f"actor.reward_clip {cut:g}: clips advantages, which are weighted by length and may reach {largest:.0f}; "
            f"set it to {10 ** math.ceil(math.log10(largest)):.1f}"
        )


def _areal(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    actor, critic = experiment["actor"], experiment.get("critic")
    norms = {name: actor.get(name) or {} for name in ("reward_norm", "adv_norm")}
    for name, levels in norms.items():
        if "group" in (levels.get("mean_level"), levels.get("std_level")):
            yield (
                f"actor.{name}: AReaL 1.0.4's groups are a fixed number of rows, but an episode may have several; use "
                "mean_level and std_level batch, or deskhand.workflow.advantages: group"
            )
    if not critic and not any(levels.get("mean_level") for levels in norms.values()):
        yield (
            "deskhand.workflow.advantages areal: nothing is subtracted from the rewards; set "
            "actor.adv_norm: {mean_level: batch, std_level: batch}"
        )
    if critic:
        yield (
            "critic: AReaL 1.0.4 adds the critic's value at the end of a batch's longest row to its return "
            "(PPOActor._compute_advantages, seq_no_eos_mask), and loads a vision model's critic with its language "
            "head; set it to null"
        )
    if settings.normalize_by_episode:
        yield (
            "deskhand.workflow.normalize_by_episode: scales advantages, but the rewards are AReaL's to use; set it to "
            "false"
        )
    if settings.agent.history != "full" and actor.get("discount", 1.0) != 1.0:
        yield (
            f"actor.discount {actor['discount']}: with history {settings.agent.history} an episode has several rows, "
            "and AReaL discounts inside of a row only; set it to 1, or deskhand.workflow.agent.history to full"
        )
    cut = float(actor.get("reward_clip", _REWARD_CLIP))
    bias, scaling = float(actor.get("reward_bias", 0.0)), float(actor.get("reward_scaling", 1.0))
    largest = max(abs(bias * scaling), abs((1.0 + bias) * scaling))
    if largest > cut:
        yield f"actor.reward_clip {cut:g}: clips rewards, which may reach {largest:g}; raise it"


def _kl(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    if not experiment["actor"].get("kl_ctl"):
        return
    if not experiment.get("ref"):
        yield "actor.kl_ctl: without a ref AReaL uses log-probs of 0; configure ref, or set it to 0"
    if settings.advantages == "group" and settings.normalize_by_episode:
        yield (
            "deskhand.workflow.normalize_by_episode: scales an episode's advantage but not its actor.kl_ctl penalty, "
            "which would weigh more in long episodes; set it to false, or kl_ctl to 0"
        )


def find_lora_problems(experiment: Mapping[str, Any], family: str | None = None) -> Iterator[str]:
    """Yield one line per problem of an adapter. `family`: of a vision model, None if unknown.

    AReaL names the adapter in each request, loads a version of it after each step and keeps the last ones. Requests of
    a plain agent are the proxy's, which names `rollout.lora_name`.
    """
    actor, rollout = experiment["actor"], experiment["rollout"]
    uses = bool(actor.get("use_lora"))
    if uses != bool(rollout.get("use_lora")):
        yield (
            f"rollout.use_lora is {bool(rollout.get('use_lora'))}, actor.use_lora {uses}: sampled and trained weights "
            "differ; use the same value"
        )
    if not uses:
        return
    name = experiment["gconfig"].get("lora_name", "default_lora")
    if not name:
        yield "gconfig.lora_name: the server needs the adapter's name; set one, such as lora"
    if (other := rollout.get("lora_name")) and other != name:
        yield f"rollout.lora_name {other}: differs from gconfig.lora_name {name}, which is trained; remove it"
    if rollout.get("_version", "v1") == "v2":
        yield "rollout._version v2: AReaL's v2 inference service asks for no adapter (InfBridge); set it to v1"
    modules, language = actor.get("target_modules") or ["all-linear"], _LANGUAGE.get(family or "")
    if language and not set(modules) <= set(language):
        yield (
            f"actor.target_modules [{', '.join(modules)}]: adapts the vision tower, where SGLang ignores adapters, so "
            f"sampled and trained weights differ; set it to [{', '.join(language)}] or some of them"
        )
    if actor.get("weight_update_mode", "xccl") != "disk":
        yield "actor.weight_update_mode: AReaL 1.0.4 sends adapters to SGLang from disk only; set it to disk"
    if not str(actor.get("backend", "fsdp")).startswith("fsdp"):
        yield f"actor.backend {actor['backend']}: AReaL 1.0.4 trains adapters for SGLang with fsdp only; use fsdp:..."
