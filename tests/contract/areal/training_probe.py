"""Runs in AReaL's own environment: real executor, real remote engine, real FSDP actor on a processor.

`python training_probe.py CHECKPOINT ADDRESS OUT_FOLDER`: episodes of `areal_workflows.PaintedWorkflow` are played
against the inference server at ADDRESS by AReaL's workflow executor, and trained on by AReaL's FSDPPPOActor. Writes
found.json and samples.pickle."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from patience import limit

# a port that was chosen here could be another's by the time that torch, after the episodes, listens at it
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
torch.set_num_threads(1)


def play(
    checkpoint: str,
    address: str,
    rows: list[dict[str, Any]],
    settings: dict[str, Any],
    workflow: str = "areal_workflows.PaintedWorkflow",
    lora: str | None = None,
    version: int = 0,
) -> list[dict[str, Any]]:
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.engine.sglang_remote import RemoteSGLangEngine

    config = InferenceEngineConfig(
        experiment_name="contract",
        trial_name="one",
        backend="sglang:d1p1t1",
        max_concurrent_rollouts=2,
        consumer_batch_size=len(rows),
        max_head_offpolicyness=100,
        tokenizer_path=checkpoint,
        setup_timeout=limit(60),
        request_timeout=limit(300),
        use_lora=lora is not None,
    )
    engine = RemoteSGLangEngine(config)
    engine.initialize(addr=address)
    engine.set_version(version)
    keywords: dict[str, Any] = {"settings": {**settings, "model": checkpoint}}
    if lora is not None:
        new = settings["agent"]["max_new_tokens"]
        keywords["gconfig"] = GenerationHyperparameters(max_new_tokens=new, temperature=1.0, lora_name=lora)
    try:
        for row in rows:
            engine.submit(row, workflow=workflow, workflow_kwargs=keywords)
        return [one for one in engine.wait(len(rows), timeout=limit(300)) if one is not None]
    finally:
        engine.destroy()


def actor_of(checkpoint: str, **changes: Any) -> Any:
    from areal.api.cli_args import MicroBatchSpec, OptimizerConfig, PPOActorConfig
    from areal.api.io_struct import FinetuneSpec
    from areal.engine.fsdp_engine import FSDPPPOActor

    values: dict[str, Any] = {
        "experiment_name": "contract",
        "trial_name": "one",
        "path": checkpoint,
        "backend": "fsdp:d1p1t1",
        "attn_impl": "sdpa",
        "dtype": "float32",
        "gradient_checkpointing": False,
        "disable_dropout": True,
        "mb_spec": MicroBatchSpec(max_tokens_per_mb=4096),
        "optimizer": OptimizerConfig(
            type="adam", lr=1e-3, weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-8, lr_scheduler_type="constant",
            gradient_clipping=1.0, warmup_steps_proportion=0.0,
        ),
        "eps_clip": 0.2, "eps_clip_higher": 0.28, "reward_norm": None, "adv_norm": None, "kl_ctl": 0.0,
        "reward_clip": 20.0, "ppo_n_minibatches": 1, "recompute_logprob": True, "use_decoupled_loss": True,
        "prox_logp_method": "recompute", "temperature": 1.0,
        **changes,
    }  # fmt: skip
    from areal.api.cli_args import RejectionSamplingConfig

    values.setdefault(
        "rejection_sampling", RejectionSamplingConfig(level="token", action="mask", metric="ratio", upper=5.0)
    )
    actor = FSDPPPOActor(config=PPOActorConfig(**values))
    actor.create_process_group()
    actor.initialize(addr=None, ft_spec=FinetuneSpec(total_train_epochs=1, dataset_size=8, train_batch_size=4))
    return actor


def gap(actor: Any, trajectories: list[dict[str, Any]]) -> float:
    """The largest difference between recomputed and recorded log-probs of sampled tokens."""
    worst = 0.0
    for one, found in zip(trajectories, actor.compute_logp(deepcopy(trajectories)), strict=True):
        mask = torch.roll(one["loss_mask"], -1, -1).bool()
        recorded = torch.roll(one["logprobs"], -1, -1)
        worst = max(worst, float((found - recorded)[mask].abs().max()))
    return worst


def update(actor: Any, trajectories: list[dict[str, Any]]) -> dict[str, float]:
    """One step as AReaL's trainer takes it; its statistics."""
    from areal.utils import stats_tracker

    batch = deepcopy(trajectories)
    for one, found in zip(batch, actor.compute_logp(batch), strict=True):
        one["prox_logp"] = found
    batch = actor.compute_advantages(batch)
    actor.ppo_update(batch)
    return {
        name: float(value) for name, value in stats_tracker.export_all(reduce_group=actor.data_parallel_group).items()
    }


def damage(actor: Any, good: list[dict[str, Any]], image_id: int) -> dict[str, Any]:
    """What AReaL does with trajectories that break a rule of `deskhand.integrations.areal.trajectory`: an error, or a
    number that says how wrong it is."""
    import damages
    from areal.utils import stats_tracker

    found: dict[str, Any] = {}
    for name, spoil in damages.SPOILS.items():
        batch = deepcopy(good)
        try:
            found[name] = damages.measure(name, actor, good, spoil(batch, image_id))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:200]}"
        for tracker in stats_tracker.TRACKERS.values():  # a step that failed leaves half of its statistics
            tracker.denominators, tracker.reduce_types = {}, {}
            tracker.stats.clear()
    return found


def main(checkpoint: str, address: str, out: Path) -> None:
    began = time.monotonic()
    import areal_workflows

    trajectories = play(checkpoint, address, [{"seed": seed} for seed in range(4)], areal_workflows.SETTINGS)
    played = time.monotonic()
    found: dict[str, Any] = {
        "rows": [list(one["input_ids"].shape) for one in trajectories],
        "keys": sorted(trajectories[0]),
        "turns": [len(result.transcript.steps) for result in areal_workflows.PaintedWorkflow.results],
        "outcomes": [type(result.outcome).__name__ for result in areal_workflows.PaintedWorkflow.results],
        "play_s": played - began,
    }
    from transformers import AutoConfig

    image_id = AutoConfig.from_pretrained(checkpoint).image_token_id
    actor = actor_of(checkpoint)
    found["leaking_gap"] = gap(actor, trajectories)
    from deskhand.models.packed_attention import separate_packed_rows

    separate_packed_rows()
    found["misplaced_gap"] = gap(actor, trajectories)
    from deskhand.integrations.areal.patches.model import patch_rope_positions

    found["patched"] = [patch_rope_positions(), patch_rope_positions()]
    found["gap"] = gap(actor, trajectories)
    rewarded = sorted(trajectories, key=lambda one: -int(one["rewards"].count_nonzero()))
    found["damage"] = damage(actor, rewarded[:2], image_id)
    actor.set_version(1)
    found["updates"] = [update(actor, trajectories) for _ in range(3)]
    found["train_s"] = time.monotonic() - played
    images = areal_workflows.PaintedWorkflow.samples
    from deskhand.integrations.areal.worker_resources import load_preprocessing

    known = load_preprocessing(checkpoint, "error", 256, True).images
    names = {span.sha256 for sample in images for span in sample.sequence.spans}
    with (out / "samples.pickle").open("wb") as file:
        pickle.dump((images, {name: known[name] for name in names}), file)
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    os._exit(0)
