"""Checks that an AReaL experiment's engines fit its GPUs: their number, their nodes and their memory.

Called by `validate_budget`. Names and rules are those of AReaL 1.0.4's `LocalScheduler`, `RayScheduler` and
`PPOTrainer`, by reading: engines that are not colocated need GPUs of their own, but the local scheduler deals devices
out in turn and would give one to two engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LETTER = re.compile(r"([dptc])(\d+)")
_STATE_BYTES = {"float32": 16, "bfloat16": 8}
"""Bytes of weight, gradient and two Adam moments of a parameter, by `actor.optimizer_dtype`."""
_LOGIT_BYTES = 6
"""Bytes of a logit: bfloat16, and float32 for its log-probability."""
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_USED_SHARE = 0.9
"""Share of a GPU's memory that weights, gradients and logits may take; the rest is for activations and CUDA."""


@dataclass(frozen=True)
class ModelSize:
    """Size of a checkpoint: number of parameters and of tokens in its vocabulary."""

    parameters: float
    vocabulary: int

    @classmethod
    def of_checkpoint(cls, folder: Path) -> ModelSize | None:
        """Return the size of a checkpoint in bfloat16 or float32 from its files; None if they do not say."""
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        text = config.get("text_config") or config
        dtype = str(config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or "bfloat16")
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        if not size or "vocab_size" not in text:
            return None
        return cls(size / _WEIGHT_BYTES.get(dtype, 2), int(text["vocab_size"]))


@dataclass(frozen=True)
class EngineGpus:
    """GPUs of one of AReaL's engines."""

    role: str
    replicas: int
    """Data-parallel replicas: AReaL's `d`."""
    per_replica: int
    """Devices of a replica: the product of AReaL's `t`, `p` and `c`."""
    target: str | None
    """The role on whose devices it runs; None: devices of its own."""

    @property
    def total(self) -> int:
        return self.replicas * self.per_replica

    @property
    def workers(self) -> int:
        """Worker processes: one for each replica of a server, one for each rank of a trainer."""
        return self.replicas if self.role == "rollout" else self.total


def engine_gpus(experiment: Mapping[str, Any]) -> list[EngineGpus]:
    """Return the engines that AReaL starts on GPUs, `rollout` first."""
    section = experiment.get("deskhand") or {}
    roles = ["actor"]
    if not section.get("servers") and not section.get("cpu_inference_server"):
        roles.insert(0, "rollout")
    roles += [role for role in ("critic",) if experiment.get(role)]
    roles += ["ref"] if experiment.get("ref") and experiment["actor"].get("kl_ctl") else []
    found = []
    for role in roles:
        engine = experiment[role]
        strategy = engine.get("scheduling_strategy") or {}
        target = str(strategy.get("target")) if strategy.get("type") == "colocation" else None
        if not _uses_gpus(experiment.get(target or role) or engine):  # a colocated engine has its target's devices
            continue
        sizes = {letter: int(number) for letter, number in _LETTER.findall(str(engine.get("backend", "")))}
        per_replica = sizes.get("t", 1) * sizes.get("p", 1) * sizes.get("c", 1)
        found.append(EngineGpus(role, sizes.get("d", 1), per_replica, target))
    return found


def _uses_gpus(engine: Mapping[str, Any]) -> bool:
    specs = engine.get("scheduling_spec")
    return not isinstance(specs, list) or any(spec.get("gpu", 0) for spec in specs)


def find_gpu_problems(experiment: Mapping[str, Any], model: ModelSize | None = None) -> Iterator[str]:
    """Yield one line per problem, with key and fix. `model` None does not check memory."""
    engines = engine_gpus(experiment)
    if not engines:
        return
    cluster = experiment.get("cluster") or {}
    nodes, per_node = int(cluster.get("n_nodes") or 1), int(cluster.get("n_gpus_per_node") or 8)
    scheduler = (experiment.get("scheduler") or {}).get("type")
    if scheduler == "local" and nodes > 1:
        yield f"cluster.n_nodes {nodes}: scheduler.type local starts every worker on this machine; use ray or slurm"
    own = [engine for engine in engines if engine.target is None]
    needed = sum(engine.total for engine in own)
    if needed > nodes * per_node:
        parts = " + ".join(f"{engine.role} {engine.total}" for engine in own)
        yield (
            f"cluster: {parts} are {needed} GPUs, cluster.n_nodes x cluster.n_gpus_per_node is {nodes * per_node}: two "
            "engines would share a device; use smaller backends, or colocate them (rollout.scheduling_strategy: {type: "
            "colocation, target: actor})"
        )
    for engine in engines:
        if engine.role == "rollout" and engine.per_replica > per_node:
            yield (
                f"rollout.backend: a replica of {engine.per_replica} GPUs does not fit a node of {per_node}: lower its "
                "t and p"
            )
    yield from _colocation(experiment, engines)
    if model is not None:
        yield from _memory(experiment, engines, model)


def _colocation(experiment: Mapping[str, Any], engines: list[EngineGpus]) -> Iterator[str]:
    by_role = {engine.role: engine for engine in engines}
    for engine in engines:
        if engine.target is None:
            continue
        target = by_role.get(engine.target)
        if target is None or target.target is not None:
            yield (
                f"{engine.role}.scheduling_strategy.target {engine.target}: must name an engine with GPUs of its own: "
                f"{', '.join(other.role for other in engines if other.target is None)}"
            )
        elif engine.workers != target.workers:
            yield (
                f"{engine.role}.scheduling_strategy: {engine.workers} workers on the {target.workers} of "
                f"{target.role}; AReaL colocates equal numbers only: change {engine.role}.backend"
            )
    if not _is_shared(experiment):
        return
    if not experiment.get("enable_offload"):
        yield "enable_offload: server and trainer on one device take turns; set it to true"
    if experiment["actor"].get("weight_update_mode") != "disk":
        yield "actor.weight_update_mode: a server on the trainer's device loads weights from disk; set it to disk"


def _is_shared(experiment: Mapping[str, Any]) -> bool:
    """Whether server and trainer are on the same devices."""
    pairs = (("actor", "rollout"), ("rollout", "actor"))
    strategies = ((experiment[role].get("scheduling_strategy") or {}, target) for role, target in pairs)
    return any(one.get("type") == "colocation" and one.get("target") == target for one, target in strategies)


def _memory(experiment: Mapping[str, Any], engines: list[EngineGpus], model: ModelSize) -> Iterator[str]:
    """Weights and optimizer of a rank, and a server's weights, against `deskhand.device_memory_gib`."""
    device = (experiment.get("deskhand") or {}).get("device_memory_gib")
    for engine in engines:
        needed = (_server_gib if engine.role == "rollout" else _trainer_gib)(experiment, engine, model)
        share = float(_section(experiment, "sglang").get("mem_fraction_static") or 0.8)
        room = None if device is None else float(device) * (share if engine.role == "rollout" else _USED_SHARE)
        if room is not None and needed > room:
            fix = "raise its t" if engine.role == "rollout" else "use more ranks, fsdp.offload_params or fewer tokens"
            yield (
                f"{engine.role}.backend: weights and what they need are {needed:.0f} GiB on each GPU, "
                f"{room:.0f} GiB of deskhand.device_memory_gib {device:g} are for them: {fix}"
            )
    if _is_shared(experiment):
        yield from _host_memory(experiment, engines, model)


def _host_memory(experiment: Mapping[str, Any], engines: list[EngineGpus], model: ModelSize) -> Iterator[str]:
    """What is offloaded waits in the memory of the host."""
    rooms = [spec["mem"] for spec in experiment["actor"].get("scheduling_spec") or () if spec.get("mem")]
    actor = next((engine for engine in engines if engine.role == "actor"), None)
    if not rooms or actor is None:
        return
    held = _state_gib(experiment, actor, model) + model.parameters * 2 / actor.total / 2**30
    if held > min(rooms):
        yield (
            f"actor.scheduling_spec[].mem {min(rooms)}: server and trainer take turns on a device, and the host keeps "
            f"{held:.0f} GiB of them for each GPU; raise it"
        )


def _section(experiment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return experiment.get(name) or {}


def _state_gib(experiment: Mapping[str, Any], engine: EngineGpus, model: ModelSize) -> float:
    each = _STATE_BYTES.get(str(experiment[engine.role].get("optimizer_dtype", "float32")), 16)
    return model.parameters * each / engine.total / 2**30


def _trainer_gib(experiment: Mapping[str, Any], engine: EngineGpus, model: ModelSize) -> float:
    own = experiment[engine.role]
    tokens = (own.get("mb_spec") or {}).get("max_tokens_per_mb") or 0
    logits = 0.0 if engine.role == "critic" else tokens * model.vocabulary * _LOGIT_BYTES / 2**30
    if engine.role == "ref":
        return logits + model.parameters * 2 / engine.total / 2**30
    offloads = (own.get("fsdp") or {}).get("offload_params")
    return logits + (0.0 if offloads else _state_gib(experiment, engine, model))


def _server_gib(experiment: Mapping[str, Any], engine: EngineGpus, model: ModelSize) -> float:
    return model.parameters * 2 / engine.per_replica / 2**30
