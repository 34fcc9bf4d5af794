"""Whether the numbers of an experiment add up. Invariant: what AReaL would train otherwise than it says, or would only fail at
after hours, is a line here, before anything is started.

Works on the experiment as plain dictionaries, so it needs no AReaL. Sources of the rules: AReaL 1.0.4's own code, as the contract
tests run it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.validate_objective import (
    WORKER,
    is_agent,
    is_deskhand_worker,
    unsupported_settings,
)

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
    from deskhand.agents.from_config import model_image_size

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


def find_config_problems(
    experiment: Mapping[str, Any],
    settings: WorkflowSettings,
    picture: ImageCost | None = None,
    max_steps: int = 15,
    family: str | None = None,
) -> list[str]:
    """What does not add up, one line each, with the key and the mend. `family`: of the model, None where it is not known."""
    return [
        *unsupported_settings(experiment, settings, max_steps, family),
        *_budgets(experiment, settings, picture, max_steps),
        *_capacity(experiment, settings),
        *_memory(experiment, settings, picture, max_steps),
        *_vision(experiment, settings),
    ]


def desktops_needed(experiment: Mapping[str, Any], settings: WorkflowSettings) -> int:
    """Desktops in use when as many groups run as AReaL allows."""
    rollout = experiment["rollout"]
    groups = rollout.get("max_concurrent_rollouts") or rollout.get("consumer_batch_size") or 1
    size = int(experiment["gconfig"].get("n_samples", 1)) if is_agent(experiment) else settings.group_size
    return int(groups) * size


def _budgets(
    experiment: Mapping[str, Any], settings: WorkflowSettings, picture: ImageCost | None, max_steps: int
) -> Iterator[str]:
    most = experiment["actor"].get("mb_spec", {}).get("max_tokens_per_mb")
    context = settings.max_model_len
    if most is not None and context > most:
        yield (
            f"deskhand.workflow.context_tokens {context} exceeds actor.mb_spec.max_tokens_per_mb {most}: the longest row would "
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
        yield f"deskhand.workflow.context_tokens {context} exceeds sglang.context_length {serves}; raise the latter"
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
                f"deskhand.workflow.context_tokens is {context}: show at most {fits}, or make room"
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
            "(rollout.max_concurrent_rollouts x deskhand.workflow.group_size): raise deskhand.workflow.desktops.embedded"
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
    if not is_deskhand_worker(experiment["actor"]):
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
    rows = (
        1 if settings.agent.history == "full" else max(1, math.ceil((max_steps - shown) / max(1, _step(settings))) + 1)
    )
    return settings.group_size * rows * shown * picture.bytes / 2**20


def _step(settings: WorkflowSettings) -> int:
    """Turns between two forks."""
    agent = settings.agent
    return max(1, agent.history_max_turns - agent.history_keep_turns) if agent.history == "grow_drop" else 1
