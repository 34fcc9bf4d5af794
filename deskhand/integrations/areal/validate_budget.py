"""Whether an experiment trains what it says, and whether its numbers add up. Invariant: what AReaL would do to rewards, advantages
or log-probs without a word, what of the configuration would be passed over, and what would only fail after hours, is a line here,
with the key and the mend, before anything is started.

A workflow's `rewards` are advantages (`areal.tensors`), so nothing of AReaL's may change them. A plain agent's are rewards, in
groups of AReaL's, one row for each call. Works on the experiment as plain dictionaries, so it needs no AReaL. Sources of the rules:
AReaL 1.0.4's own code, as the contract tests run it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.agents.from_config import model_image_size
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
_TURN_TOKENS = 32
"""What a turn's words, besides its picture and its reply, are counted with."""
_HEAD_TOKENS = {"compact": 64, "full": 1536}
"""What stands before the first turn, by the agent's style: the task, and how to answer."""


@dataclass(frozen=True)
class ImageCost:
    """What one screenshot costs this model."""

    tokens: int
    bytes: int
    """Of its pixels as AReaL moves them about, in float32."""


def image_cost(processor: Any, width: int, height: int) -> ImageCost:
    """A screenshot of that size under a Qwen-VL image processor."""
    wide, high = model_image_size(processor)(width, height)
    patch, merge = processor.patch_size, processor.merge_size
    patches = (wide // patch) * (high // patch)
    return ImageCost(patches // merge**2, patches * 3 * processor.temporal_patch_size * patch**2 * 4)


def max_images_in_context(settings: WorkflowSettings, max_steps: int) -> int:
    """Most screenshots of one prompt, which is most of one row."""
    agent = settings.agent
    if agent.observation == "words":
        return 0
    return min(
        max_steps,
        {"full": max_steps, "sliding": agent.sliding_turns, "grow_drop": agent.history_max_turns}[agent.history],
    )


def is_agent(experiment: Mapping[str, Any]) -> bool:
    """Whether it names a plain agent, whose groups and rewards are AReaL's business. Raises `ConfigError` for a kind that is not
    there."""
    from deskhand.integrations.areal.workflow import OSWorldWorkflow

    kind = import_by_path(str(experiment.get("deskhand", {}).get("kind") or WORKFLOW))
    return not (isinstance(kind, type) and issubclass(kind, OSWorldWorkflow))


def find_config_problems(
    experiment: Mapping[str, Any],
    settings: WorkflowSettings,
    picture: ImageCost | None = None,
    max_steps: int = 15,
    family: str | None = None,
) -> list[str]:
    """What does not add up, one line each, with the key and the mend. `family`: of the model, None where it is not known."""
    actor, asked = experiment["actor"], experiment["gconfig"]
    found: list[str] = []
    if actor.get("temperature", 1.0) != asked.get("temperature", 1.0):
        found.append(
            "actor.temperature differs from gconfig.temperature: log-probs would be of another distribution; write the same"
        )
    return [
        *found,
        *(_agent(experiment, settings) if is_agent(experiment) else _workflow(experiment, settings, max_steps)),
        *_workers(experiment, family),
        *_budgets(experiment, settings, picture, max_steps),
        *_capacity(experiment, settings),
        *_memory(experiment, settings, picture, max_steps),
        *_vision(experiment, settings),
    ]


def _workflow(experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int) -> Iterator[str]:
    actor, asked = experiment["actor"], experiment["gconfig"]
    for key, value in _UNCHANGED.items():
        if actor.get(key, value) != value:
            shown = "null" if value is None else value
            yield f"actor.{key} is {actor[key]}: the workflow has compared the group already; write {shown}"
    if asked.get("n_samples", 1) != 1:
        yield f"gconfig.n_samples is {asked['n_samples']}: the group is deskhand.workflow.loop.group_size; write 1"
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
    return math.sqrt(settings.loop.group_size - 1) * (most_tokens if settings.normalize_by_episode else 1)


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
        ours = not ray and (forked or is_ours(engine))
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


def is_ours(engine: Mapping[str, Any]) -> bool:
    """Whether an engine's workers are `areal.worker`."""
    commands = [str(one.get("cmd") or "") for one in engine.get("scheduling_spec") or ()]
    return bool(commands) and all(WORKER in command for command in commands)


def desktops_needed(experiment: Mapping[str, Any], settings: WorkflowSettings) -> int:
    """Desktops in use when as many groups run as AReaL allows."""
    rollout = experiment["rollout"]
    groups = rollout.get("max_concurrent_rollouts") or rollout.get("consumer_batch_size") or 1
    size = int(experiment["gconfig"].get("n_samples", 1)) if is_agent(experiment) else settings.loop.group_size
    return int(groups) * size


def _budgets(
    experiment: Mapping[str, Any], settings: WorkflowSettings, picture: ImageCost | None, max_steps: int
) -> Iterator[str]:
    most = experiment["actor"].get("mb_spec", {}).get("max_tokens_per_mb")
    context = settings.engine.max_model_len
    if most is not None and context > most:
        yield (
            f"deskhand.workflow.engine.max_tokens {context} exceeds actor.mb_spec.max_tokens_per_mb {most}: the longest row would "
            "fail its step; raise the latter"
        )
    if most is not None and is_agent(experiment):
        longest = experiment["rollout"].get("agent", {}).get("engine_max_tokens")
        if longest is None or longest > most:
            yield (
                f"rollout.agent.engine_max_tokens is {longest}: a row of the proxy may be longer than "
                f"actor.mb_spec.max_tokens_per_mb {most} and fail its step; write at most that"
            )
    serves = experiment.get("sglang", {}).get("context_length")
    if serves is not None and context > serves:
        yield f"deskhand.workflow.engine.max_tokens {context} exceeds sglang.context_length {serves}; raise the latter"
    if picture is not None:
        shown = max_images_in_context(settings, max_steps)
        turn, head = (
            picture.tokens + settings.agent.max_new_tokens + _TURN_TOKENS,
            _HEAD_TOKENS[settings.agent.prompt_style],
        )
        if head + shown * turn > context:
            fits = max(0, (context - head) // turn)
            yield (
                f"{shown} screenshots of {picture.tokens} tokens with their replies are {head + shown * turn} tokens, "
                f"deskhand.workflow.engine.max_tokens is {context}: show at most {fits}, or make room"
            )
    timeout = experiment["rollout"].get("request_timeout")
    if timeout is not None and settings.group_timeout_s >= timeout:
        yield (
            f"deskhand.workflow.group_timeout_s {settings.group_timeout_s:g} is not below rollout.request_timeout {timeout:g}: "
            "AReaL would give up the whole group"
        )
    new = experiment["gconfig"].get("max_new_tokens")
    if new is not None and new >= context:
        yield f"gconfig.max_new_tokens {new} leaves no room for a prompt in {context} tokens"


def _capacity(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    rollout, needed = experiment["rollout"], desktops_needed(experiment, settings)
    desktops = settings.desktops
    replicas = _replicas(str(rollout.get("backend", "")))
    if desktops.local and desktops.local * replicas < needed:
        yield (
            f"{desktops.local} embedded desktops in each of {replicas} workers for {needed} episodes at a time "
            "(rollout.max_concurrent_rollouts x deskhand.workflow.loop.group_size): raise deskhand.workflow.desktops.embedded"
        )
    if desktops.local and replicas > 1 and desktops.settings.memory_request_mib:
        yield "embedded desktops belong to one worker each; for several lease from a bridge (deskhand.workflow.desktops.bridge)"
    batch = experiment.get("train_dataset", {}).get("batch_size")
    ranks = _replicas(str(experiment["actor"].get("backend", "")))
    if batch is not None and batch < ranks:
        yield f"train_dataset.batch_size {batch} is below the {ranks} ranks of actor.backend: a rank without a picture fails"
    if batch is not None and rollout.get("consumer_batch_size") not in (None, batch):
        yield "rollout.consumer_batch_size differs from train_dataset.batch_size: staleness would be counted wrongly"


def _memory(
    experiment: Mapping[str, Any], settings: WorkflowSettings, picture: ImageCost | None, max_steps: int
) -> Iterator[str]:
    """AReaL hands the pixels of a rank's rows about in float32, and the rank holds those of its share of a batch."""
    rooms = [one["mem"] for one in experiment["actor"].get("scheduling_spec") or () if one.get("mem")]
    batch = experiment.get("train_dataset", {}).get("batch_size")
    if picture is None or not rooms or not batch:
        return
    held_gib = (
        trajectory_mib(settings, picture, max_steps)
        * batch
        / _replicas(str(experiment["actor"].get("backend", "")))
        / 1024
    )
    if held_gib > min(rooms):
        yield (
            f"pixels of a batch are {held_gib:.0f} GiB for each rank, actor.scheduling_spec[].mem is {min(rooms)}: raise it, show "
            "fewer screenshots, or lower train_dataset.batch_size"
        )


def _vision(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    if not settings.sees:
        if "VL" in str(experiment["actor"].get("path", "")):
            yield (
                f"deskhand.workflow.agent.screen words with the vision model {experiment['actor']['path']}: AReaL 1.0.4 fails on a "
                "batch without pictures; name a text model"
            )
        return
    if is_agent(experiment):
        yield (
            f"deskhand.kind {experiment['deskhand']['kind']}: AReaL 1.0.4's proxy trains rows without their pictures; write "
            "deskhand.integrations.areal.workflow.OSWorldWorkflow, or deskhand.workflow.agent.screen: words"
        )
    if str(experiment["rollout"].get("backend", "")).startswith("vllm"):
        yield "rollout.backend vllm: AReaL 1.0.4's vLLM adapter writes prompts with pictures anew; write sglang"
    if not is_ours(experiment["actor"]):
        yield (
            "actor.scheduling_spec[].cmd: AReaL's own worker places pictures of Qwen2.5-VL elsewhere than servers do "
            f"(transformers 5.3); write python3 -m {WORKER}"
        )
    own = experiment.get("deskhand", {})
    served = own.get("servers") or own.get("processor_server")
    if not served and not experiment.get("sglang", {}).get("enable_multimodal", False):
        yield "sglang.enable_multimodal is off: the server would not look at pictures; write true"


def _replicas(backend: str) -> int:
    """The `d` of `sglang:d4p1t1`."""
    digits = "".join(
        character for character in backend.partition(":d")[2].split("p")[0].split("t")[0] if character.isdigit()
    )
    return int(digits or 1)


def trajectory_mib(settings: WorkflowSettings, picture: ImageCost, max_steps: int) -> float:
    """Pixels of one group as AReaL moves them from the workers to the trainer, in MiB: each row carries its own."""
    shown = max_images_in_context(settings, max_steps)
    agent = settings.agent
    between_forks = max(1, agent.history_max_turns - agent.history_keep_turns) if agent.history == "grow_drop" else 1
    rows = 1 if agent.history == "full" else max(1, math.ceil((max_steps - shown) / between_forks) + 1)
    return settings.loop.group_size * rows * shown * picture.bytes / 2**20
