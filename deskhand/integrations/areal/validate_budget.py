"""Checks that an AReaL experiment trains what it states and that its budgets fit.

Called by `entrypoint` before any worker starts. Reports settings that would silently change rewards, advantages or
log-probs, settings that would be ignored, and errors that would surface only after hours. With `OSWorldWorkflow`,
rewards are advantages and AReaL must not modify them; with a plain agent they are rewards in AReaL's groups, one row
per call. Works on plain dictionaries, without AReaL; the rules reflect AReaL 1.0.4, as the contract tests run it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.integrations.areal.settings import WorkflowSettings, import_by_path
from deskhand.integrations.areal.validate_gpus import ModelSize, find_gpu_problems
from deskhand.integrations.areal.validate_objective import find_lora_problems, find_objective_problems
from deskhand.models.families import FAMILIES
from deskhand.models.load import read_json

WORKER = "deskhand.integrations.areal.worker"
PACKING = ("flash_attention_2", "flash_attention_3")
WORKFLOW = "deskhand.integrations.areal.workflow.OSWorldWorkflow"
_UNSUPPORTED_SAMPLING = {
    "greedy": False, "top_k": 100_000_000, "frequency_penalty": 0.0, "min_new_tokens": 0, "ignore_eos": False,
    "stop": None, "stop_token_ids": [],
}  # fmt: skip
"""Keys of `gconfig` that the workflow does not pass on, with AReaL's defaults."""
_TEXT_TOKENS_PER_TURN = 32
"""Estimated text tokens of a turn, besides its screenshot and reply."""
_HEAD_TOKENS = {"compact": 64, "full": 1536}
"""Estimated tokens before the first turn, by prompt style."""


@dataclass(frozen=True)
class ImageCost:
    """Cost of one screenshot for a model."""

    tokens: int
    bytes: int
    """Size of its pixels in float32, as AReaL transfers them."""


def image_cost(processor: Any, width: int, height: int, max_pixels: int | None = None) -> ImageCost:
    """Return the cost of a screenshot of this size under a Qwen-VL image processor and `agent.max_pixels`."""
    wide, high = model_image_size(processor)(width, height, max_pixels)
    patch, merge = processor.patch_size, processor.merge_size
    patches = (wide // patch) * (high // patch)
    return ImageCost(patches // merge**2, patches * 3 * processor.temporal_patch_size * patch**2 * 4)


def max_images_in_context(settings: WorkflowSettings, max_steps: int) -> int:
    """Return the maximum number of screenshots in one prompt."""
    agent = settings.agent
    if agent.observation == "a11y_tree":
        return 0
    turns = {"full": max_steps, "sliding": agent.sliding_turns, "chunked": agent.history_max_turns}
    return min(max_steps, turns[agent.history])


def is_agent(experiment: Mapping[str, Any]) -> bool:
    """Return whether the experiment uses a plain agent. Raises `ConfigError` for an unknown class."""
    from deskhand.integrations.areal.workflow import OSWorldWorkflow

    workflow = import_by_path(str(experiment.get("deskhand", {}).get("workflow_class") or WORKFLOW))
    return not (isinstance(workflow, type) and issubclass(workflow, OSWorldWorkflow))


def find_model_problems(folder: Path) -> Iterator[str]:
    """Yield a line if AReaL cannot train the checkpoint in a folder."""
    file = folder / "config.json"
    family = FAMILIES.get(str(read_json(file).get("model_type"))) if file.is_file() else None
    if family is not None and not family.trains_with_areal:
        yield f"actor.path {folder}: packed rows of {family.classes} may be mixed by AReaL 1.0.4; use --trainer local"


def find_config_problems(
    experiment: Mapping[str, Any],
    settings: WorkflowSettings,
    image: ImageCost | None = None,
    max_steps: int = 15,
    family: str | None = None,
    model: ModelSize | None = None,
    exports_images: bool = False,
) -> list[str]:
    """Return one line per problem, with key and fix.

    `family` and `model`: family and size, None if unknown. `exports_images`: whether the installed AReaL's proxy trains
    rows with their images (`installed_areal.exports_images`).
    """
    actor, gconfig = experiment["actor"], experiment["gconfig"]
    found: list[str] = []
    if actor.get("temperature", 1.0) != gconfig.get("temperature", 1.0):
        found.append(
            "actor.temperature: differs from gconfig.temperature, so log-probs are of another distribution; "
            "use the same value"
        )
    restricted = {
        "top_p": gconfig.get("top_p", 1.0) < 1,
        "temperature": gconfig.get("temperature", 1.0) == 0,
    }
    found += [
        f"gconfig.{key}: samples from fewer tokens than the log-probs are over, so replies cannot be trained; remove it"
        for key, is_restricted in restricted.items()
        if is_restricted
    ]
    return [
        *found,
        *(_agent(experiment, settings) if is_agent(experiment) else _workflow(experiment, settings, max_steps)),
        *find_lora_problems(experiment, family),
        *_workers(experiment, family),
        *_budgets(experiment, settings, image, max_steps),
        *_capacity(experiment, settings),
        *_memory(experiment, settings, image, max_steps),
        *_vision(experiment, settings, exports_images),
        *find_gpu_problems(experiment, model),
    ]


def _workflow(experiment: Mapping[str, Any], settings: WorkflowSettings, max_steps: int) -> Iterator[str]:
    actor, gconfig = experiment["actor"], experiment["gconfig"]
    if gconfig.get("n_samples", 1) != 1:
        yield (
            f"gconfig.n_samples is {gconfig['n_samples']}: group size is deskhand.workflow.loop.group_size; set it to 1"
        )
    if gconfig.get("top_p", 1.0) != 1.0:
        yield _top_p("gconfig.top_p", gconfig["top_p"])
    yield from find_objective_problems(experiment, settings, max_steps)
    for key, value in _UNSUPPORTED_SAMPLING.items():
        if gconfig.get(key, value) != value:
            yield f"gconfig.{key} is {gconfig[key]}: not used by the workflow; remove it"
    if settings.algorithm == "gspo" and actor.get("importance_sampling_level", "token") != "sequence":
        yield (
            "deskhand.workflow.algorithm gspo: token-level ratios make it GRPO; set actor.importance_sampling_level: "
            "sequence"
        )
    if settings.algorithm == "dr_grpo" and settings.normalize_by_episode:
        yield (
            "deskhand.workflow.normalize_by_episode divides by the episode length, which dr_grpo avoids; "
            "set it to false, or use algorithm: grpo"
        )


def _top_p(key: str, value: float) -> str:
    return (
        f"{key} {value:g}: the server samples from the nucleus, log-probs are of all tokens, so "
        "every update is biased; set it to 1.0"
    )


def _agent(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    actor = experiment["actor"]
    if settings.agent.temperature != actor.get("temperature", 1.0):
        yield (
            f"deskhand.workflow.agent.temperature {settings.agent.temperature:g} differs from actor.temperature, so "
            "log-probs are of another distribution; use the same value"
        )
    if settings.agent.top_p != 1.0:
        yield _top_p("deskhand.workflow.agent.top_p", settings.agent.top_p)
    for name in ("reward_norm", "adv_norm"):
        levels = actor.get(name) or {}
        if "group" in (levels.get("mean_level"), levels.get("std_level")):
            yield (
                f"actor.{name}: AReaL 1.0.4 groups every group_size rows, but an agent's episode has one row per call; "
                f"set {name}: {{mean_level: batch, std_level: batch}}, or use {WORKFLOW}"
            )
    if actor.get("kl_ctl") and not experiment.get("ref"):
        yield "actor.kl_ctl: without a ref AReaL uses log-probs of 0; set it to 0, or configure ref"


def _workers(experiment: Mapping[str, Any], family: str | None) -> Iterator[str]:
    """Check each engine that computes log-probs or values: isolation of packed rows and image positions."""
    ray = experiment.get("scheduler", {}).get("type") == "ray"
    used = ["actor", "critic", *(["ref"] if experiment["actor"].get("kl_ctl") else [])]
    for name in [name for name in used if experiment.get(name)]:
        engine = experiment[name]
        attention = engine.get("attn_impl", PACKING[0])
        # A colocated engine is forked as Deskhand's worker by `patches.worker_launch`; Ray's are patched by
        # `ray_cluster`.
        forked = (engine.get("scheduling_strategy") or {}).get("type") == "colocation"
        is_patched = ray or forked or is_deskhand_worker(engine)
        if attention not in PACKING and not (attention == "sdpa" and is_patched):
            hint = f"on CPU sdpa with {name}.scheduling_spec[].cmd: python3 -m {WORKER}"
            yield f"{name}.attn_impl {attention}: packed rows attend to each other; use {PACKING[0]}, or {hint}"
        if engine.get("enable_tree_training") and family is not None:
            yield f"{name}.enable_tree_training: AReaL 1.0.4 drops images from its row trees; set it to false"
    if ray and is_agent(experiment):
        yield (
            f"deskhand.workflow_class {experiment['deskhand']['workflow_class']}: AReaL 1.0.4 starts no proxy under "
            f'Ray ("Proxy workers not supported with RayScheduler"); use {WORKFLOW}, or scheduler.type local or slurm'
        )


def is_deskhand_worker(engine: Mapping[str, Any]) -> bool:
    """Return whether an engine's workers are `integrations.areal.worker`."""
    commands = [str(one.get("cmd") or "") for one in engine.get("scheduling_spec") or ()]
    return bool(commands) and all(WORKER in command for command in commands)


def desktops_needed(experiment: Mapping[str, Any], settings: WorkflowSettings) -> int:
    """Return the number of desktops used when as many groups run as AReaL allows."""
    rollout = experiment["rollout"]
    groups = rollout.get("max_concurrent_rollouts") or rollout.get("consumer_batch_size") or 1
    size = int(experiment["gconfig"].get("n_samples", 1)) if is_agent(experiment) else settings.loop.group_size
    return int(groups) * size


def _budgets(
    experiment: Mapping[str, Any], settings: WorkflowSettings, image: ImageCost | None, max_steps: int
) -> Iterator[str]:
    most = experiment["actor"].get("mb_spec", {}).get("max_tokens_per_mb")
    context = settings.engine.max_model_len
    if most is not None and context > most:
        yield (
            f"deskhand.workflow.engine.max_model_len {context} exceeds actor.mb_spec.max_tokens_per_mb {most}: "
            "a row may be too long for its step; raise the latter"
        )
    if most is not None and is_agent(experiment):
        longest = experiment["rollout"].get("agent", {}).get("engine_max_tokens")
        if longest is None or longest > most:
            yield (
                f"rollout.agent.engine_max_tokens is {longest}: a row may exceed "
                f"actor.mb_spec.max_tokens_per_mb {most} and fail its step; use at most that"
            )
    serves = experiment.get("sglang", {}).get("context_length")
    if serves is not None and context > serves:
        yield (
            f"deskhand.workflow.engine.max_model_len {context} exceeds sglang.context_length {serves}; raise the latter"
        )
    if image is not None:
        shown = max_images_in_context(settings, max_steps)
        turn = image.tokens + settings.agent.max_new_tokens + _TEXT_TOKENS_PER_TURN
        head = _HEAD_TOKENS[settings.agent.prompt_style]
        if head + shown * turn > context:
            fits = max(0, (context - head) // turn)
            yield (
                f"{shown} screenshots of {image.tokens} tokens with their replies are {head + shown * turn} tokens, "
                f"deskhand.workflow.engine.max_model_len is {context}: use at most {fits}, lower "
                "deskhand.workflow.agent.max_pixels, or raise it"
            )
    timeout = experiment["rollout"].get("request_timeout")
    if timeout is not None and settings.group_timeout_s >= timeout:
        yield (
            f"deskhand.workflow.group_timeout_s {settings.group_timeout_s:g} is not below rollout.request_timeout "
            f"{timeout:g}: AReaL would drop the whole group"
        )
    new = experiment["gconfig"].get("max_new_tokens")
    if new is not None and new >= context:
        yield f"gconfig.max_new_tokens {new} leaves no room for a prompt in {context} tokens"


def _capacity(experiment: Mapping[str, Any], settings: WorkflowSettings) -> Iterator[str]:
    rollout, needed = experiment["rollout"], desktops_needed(experiment, settings)
    desktops = settings.desktops
    replicas = _replicas(rollout)
    if desktops.local and desktops.local * replicas < needed:
        yield (
            f"{desktops.local} local desktops in each of {replicas} workers for {needed} concurrent episodes "
            "(rollout.max_concurrent_rollouts x deskhand.workflow.loop.group_size): "
            "raise deskhand.workflow.desktops.local"
        )
    if desktops.local and replicas > 1 and desktops.settings.memory_request_mib:
        yield (
            "local desktops belong to one worker each; with several, use a desktop server "
            "(deskhand.workflow.desktops.server_url)"
        )
    if desktops.num_machines is not None and replicas > 1:
        yield (
            f"deskhand.workflow.desktops.settings.urls: each of {replicas} workers would use the same machines; lease "
            "them from a desktop server (deskhand serve desktops --machine URL)"
        )
    elif desktops.num_machines is not None and desktops.num_machines < needed:
        yield (
            f"deskhand.workflow.desktops.settings.urls: {desktops.num_machines} machines for {needed} concurrent "
            "episodes (rollout.max_concurrent_rollouts x deskhand.workflow.loop.group_size); add machines or lower them"
        )
    if (experiment.get("deskhand") or {}).get("valid") and not experiment.get("valid_dataset"):
        yield "deskhand.valid: nothing is evaluated without valid_dataset; set valid_dataset.batch_size"
    batch = experiment.get("train_dataset", {}).get("batch_size")
    ranks = _replicas(experiment["actor"])
    if batch is not None and batch < ranks:
        yield (
            f"train_dataset.batch_size {batch} is below the {ranks} ranks of actor.backend: "
            "a rank without an image fails"
        )
    if batch is not None and rollout.get("consumer_batch_size") not in (None, batch):
        yield "rollout.consumer_batch_size differs from train_dataset.batch_size: staleness is miscounted"


def _memory(
    experiment: Mapping[str, Any], settings: WorkflowSettings, image: ImageCost | None, max_steps: int
) -> Iterator[str]:
    """AReaL transfers the pixels of a rank's rows in float32, and a rank holds those of its share of a batch."""
    rooms = [one["mem"] for one in experiment["actor"].get("scheduling_spec") or () if one.get("mem")]
    batch = experiment.get("train_dataset", {}).get("batch_size")
    if image is None or not rooms or not batch:
        return
    held_gib = trajectory_mib(settings, image, max_steps) * batch / _replicas(experiment["actor"]) / 1024
    if held_gib > min(rooms):
        yield (
            f"pixels of a batch are {held_gib:.0f} GiB for each rank, actor.scheduling_spec[].mem is {min(rooms)}: "
            "raise it, use fewer screenshots, or lower train_dataset.batch_size"
        )


def _vision(experiment: Mapping[str, Any], settings: WorkflowSettings, exports_images: bool) -> Iterator[str]:
    if not settings.uses_images:
        if "VL" in str(experiment["actor"].get("path", "")):
            yield (
                f"deskhand.workflow.agent.observation a11y_tree with the vision model {experiment['actor']['path']}: "
                "AReaL 1.0.4 fails on a batch without images; use a text model"
            )
        return
    agent = is_agent(experiment)
    if agent and not exports_images:
        yield (
            f"deskhand.workflow_class {experiment['deskhand']['workflow_class']}: the proxy of the installed AReaL "
            f"trains rows without their images; use {WORKFLOW}, or deskhand.workflow.agent.observation: a11y_tree"
        )
    # An agent's prompts are rendered by AReaL itself, which exports images only of a server that takes its tokens.
    if str(experiment["rollout"].get("backend", "")).startswith("vllm") and not (agent and exports_images):
        yield "rollout.backend vllm: AReaL 1.0.4's vLLM adapter re-renders prompts with images; use sglang"
    if not is_deskhand_worker(experiment["actor"]):
        yield (
            "actor.scheduling_spec[].cmd: AReaL's own worker positions images of Qwen2.5-VL differently from servers "
            f"(transformers 5.3); use python3 -m {WORKER}"
        )
    section = experiment.get("deskhand", {})
    has_server = section.get("servers") or section.get("cpu_inference_server")
    if not has_server and not experiment.get("sglang", {}).get("enable_multimodal", False):
        yield "sglang.enable_multimodal: the server ignores images without it; set it to true"


def _replicas(engine: Mapping[str, Any]) -> int:
    """Return the `d` of a backend such as `sglang:d4p1t1`."""
    found = re.search(r":d(\d+)", str(engine.get("backend", "")))
    return int(found[1]) if found else 1


def trajectory_mib(settings: WorkflowSettings, image: ImageCost, max_steps: int) -> float:
    """Return the MiB of pixels of one group that AReaL transfers; each row carries its own."""
    shown = max_images_in_context(settings, max_steps)
    agent = settings.agent
    between_forks = max(1, agent.history_max_turns - agent.history_keep_turns) if agent.history == "chunked" else 1
    rows = 1 if agent.history == "full" else max(1, math.ceil((max_steps - shown) / between_forks) + 1)
    return settings.loop.group_size * rows * shown * image.bytes / 2**20
