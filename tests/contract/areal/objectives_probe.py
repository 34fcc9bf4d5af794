"""Runs in AReaL's own environment: KL to a reference and LoRA, on episodes of painted desktops.

`python objectives_probe.py KIND CHECKPOINT ADDRESS [REFERENCE] OUT_FOLDER`, as `training_probe.py`. KIND "kl"
writes the tensors that AReaL made to tensors.safetensors; every KIND makes one update.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import areal_workflows
import torch
import training_probe
from safetensors.torch import save_file

ROWS = [{"seed": seed} for seed in range(2)]
LORA = "clicker"
Trajectories = list[dict[str, Any]]


def settings_with(**changes: Any) -> dict[str, Any]:
    return {**areal_workflows.SETTINGS, "tasks": "areal_workflows.square_in_turns", **changes}


def keep(out: Path, batch: Trajectories) -> None:
    names = ("loss_mask", "attention_mask", "logprobs", "ref_logp", "values", "rewards", "advantages", "returns")
    found = {
        f"{number}.{name}": one[name].float().contiguous()
        for number, one in enumerate(batch)
        for name in names
        if name in one
    }
    save_file(found, out / "tensors.safetensors")


def statistics(engine: Any) -> dict[str, float]:
    from areal.utils import stats_tracker

    exported = stats_tracker.export_all(reduce_group=engine.data_parallel_group)
    return {name: float(value) for name, value in exported.items()}


def moved(engine: Any, before: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, value in engine.model.named_parameters() if not torch.equal(value.detach(), before[name])]


def weights(engine: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in engine.model.named_parameters()}


def kl(checkpoint: str, address: str, reference: str, out: str) -> dict[str, Any]:
    from deskhand.integrations.areal.worker import patch_process

    patch_process()
    played = training_probe.play(checkpoint, address, ROWS, settings_with(normalize_by_episode=False))
    actor = training_probe.actor_of(checkpoint, kl_ctl=0.1, kl_estimator="k1")
    ref = training_probe.actor_of(reference, optimizer=None)
    batch = deepcopy(played)
    for one, prox, given in zip(batch, actor.compute_logp(batch), ref.compute_logp(batch), strict=True):
        one["prox_logp"], one["ref_logp"] = prox, given
    batch = actor.compute_advantages(batch)
    keep(Path(out), batch)
    before = weights(actor)
    actor.ppo_update(batch)
    return {"statistics": statistics(actor), "moved": len(moved(actor, before)), "rows": len(batch)}


def load_adapter(address: str, name: str, folder: Path) -> None:
    body = json.dumps({"lora_name": name, "lora_path": str(folder)}).encode()
    request = urllib.request.Request(f"http://{address}/load_lora_adapter", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert json.load(reply)["success"]


def lora(checkpoint: str, address: str, out: str) -> dict[str, Any]:
    from areal.api.io_struct import SaveLoadMeta

    from deskhand.integrations.areal.worker import patch_process

    patch_process()
    language = ["q_proj", "k_proj", "v_proj", "o_proj"]  # the vision tower has other names
    actor = training_probe.actor_of(
        checkpoint, use_lora=True, lora_rank=4, lora_alpha=16, target_modules=language, peft_type="lora"
    )
    trained = [name for name, value in actor.model.named_parameters() if value.requires_grad]
    versions: list[Trajectories] = []
    gaps, found = [], {}
    for version in range(2):
        folder = Path(out) / f"adapter-{version}"
        actor.save(SaveLoadMeta(path=str(folder), weight_format="hf", with_optim=False, base_model_path=checkpoint))
        load_adapter(address, f"{LORA}-v{version}", folder)
        versions.append(training_probe.play(checkpoint, address, ROWS, settings_with(), lora=LORA, version=version))
        gaps.append(training_probe.gap(actor, versions[-1]))
        if version == 0:
            before = weights(actor)
            found = training_probe.update(actor, versions[0])
            names = moved(actor, before)
    return {
        "trained": trained,
        "moved": names,
        "gaps": gaps,
        "old_gap": training_probe.gap(actor, versions[0]),
        "statistics": found,
        "versions": [sorted({int(v) for one in made for v in one["versions"].unique()}) for made in versions],
    }


def main(kind: str, *arguments: str) -> None:
    found = {"kl": kl, "lora": lora}[kind](*arguments)
    (Path(arguments[-1]) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
