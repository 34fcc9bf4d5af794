"""Trajectories that break one rule each, and what AReaL's own code then does. Runs in AReaL's environment
(`training_probe.py`).

A spoil takes the good trajectories and changes them; `measure` returns a number (how wrong AReaL is without noticing)
or raises what AReaL raises. Nothing here changes the actor's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

Trajectories = list[dict[str, Any]]


def rows(batch: Trajectories) -> list[tuple[dict[str, Any], int, int]]:
    """(trajectory, row, length of the row) of every row."""
    return [(one, b, int(one["attention_mask"][b].sum())) for one in batch for b in range(len(one["rewards"]))]


def missing_key(batch: Trajectories, image_id: int) -> Trajectories:
    del batch[0]["versions"]
    return batch


def hole(batch: Trajectories, image_id: int) -> Trajectories:
    """Every row is moved to the right, as a generator pads."""
    for one, b, length in rows(batch):
        for name in ("input_ids", "attention_mask", "loss_mask", "logprobs", "versions", "mm_token_type_ids"):
            one[name][b] = torch.roll(one[name][b], one[name].shape[1] - length, -1)
    return batch


def unsampled_end(batch: Trajectories, image_id: int) -> Trajectories:
    for one, b, length in rows(batch):
        one["loss_mask"][b, length - 1] = 0
    return batch


def sampled_start(batch: Trajectories, image_id: int) -> Trajectories:
    for one in batch:
        one["loss_mask"][:, 0] = 1
    return batch


def nothing(batch: Trajectories, image_id: int) -> Trajectories:
    for one in batch:
        one["loss_mask"].zero_()
    return batch


def empty_lists(batch: Trajectories, image_id: int) -> Trajectories:
    """What is written for rows without pictures by those who expect AReaL to take an empty list."""
    for one in batch:
        one["multi_modal_input"] = []
    return batch


def other_sizes(batch: Trajectories, image_id: int) -> Trajectories:
    """Two pictures of a row exchange columns: as many patches together, not each."""
    for one in batch:
        for shown in one["multi_modal_input"]:
            if "image_grid_thw" in shown and len(shown["image_grid_thw"]) > 1:
                shown["image_grid_thw"] = shown["image_grid_thw"].clone()
                shown["image_grid_thw"][0, 2] -= 4
                shown["image_grid_thw"][1, 2] += 4
    return batch


def all_text(batch: Trajectories, image_id: int) -> Trajectories:
    for one in batch:
        one["mm_token_type_ids"].zero_()
    return batch


def sampled_picture(batch: Trajectories, image_id: int) -> Trajectories:
    one, b, length = rows(batch)[0]
    one["input_ids"][b, length - 1] = image_id
    return batch


def lost_logprobs(batch: Trajectories, image_id: int) -> Trajectories:
    for one, b, length in rows(batch):
        one["logprobs"][b, length - 1] = 0
    return batch


def no_versions(batch: Trajectories, image_id: int) -> Trajectories:
    for one in batch:
        one["versions"].fill_(-1)
    return batch


def not_finite(batch: Trajectories, image_id: int) -> Trajectories:
    batch[0]["rewards"][0] = float("nan")
    return batch


def no_pictures(batch: Trajectories, image_id: int) -> Trajectories:
    for one in batch:
        one["input_ids"][one["input_ids"] == image_id] = 5
        one["mm_token_type_ids"].zero_()
        one["multi_modal_input"] = [{} for _ in one["multi_modal_input"]]
    return batch


def shifted(batch: Trajectories, image_id: int) -> Trajectories:
    """The first trajectory's log-probs begin with the second token, as those of most trainers; the other trajectory is
    longer."""
    batch[0]["logprobs"] = batch[0]["logprobs"][:, 1:]
    width = batch[0]["input_ids"].shape[1] + 1 - batch[1]["input_ids"].shape[1]
    for name, array in batch[1].items():
        if name not in ("rewards", "multi_modal_input") and width > 0:
            batch[1][name] = torch.nn.functional.pad(array, (0, width), value=-1 if name == "versions" else 0)
    return batch


def double(batch: Trajectories, image_id: int) -> Trajectories:
    """Numbers as NumPy makes them."""
    for one in batch:
        one["logprobs"] = one["logprobs"].double()
    return batch


def unchanged(batch: Trajectories, image_id: int) -> Trajectories:
    return batch


SPOILS: dict[str, Callable[[Trajectories, int], Trajectories]] = {
    "keys": missing_key,
    "shape": shifted,
    "dtype": double,
    "padding": hole,
    "last_token": unsampled_end,
    "first_token": sampled_start,
    "nothing_sampled": nothing,
    "pictures": empty_lists,
    "placeholders": other_sizes,
    "types": all_text,
    "banned_id": sampled_picture,
    "logprobs": lost_logprobs,
    "versions": no_versions,
    "reward": not_finite,
    "no_picture": no_pictures,
    "too_long": unchanged,
}
"""By the cause with which `check_trajectory` refuses them; "too_long" is a good batch on an actor with a smaller
budget."""


def logprobs_of(actor: Any, batch: Trajectories) -> list[torch.Tensor]:
    return actor.compute_logp(deepcopy(batch))


def change(actor: Any, good: Trajectories, bad: Trajectories) -> float:
    """The largest change of a sampled token's log-prob; rows of both begin at the first sampled token of each."""
    worst = 0.0
    for one, other, before, after in zip(good, bad, logprobs_of(actor, good), logprobs_of(actor, bad), strict=True):
        for b in range(len(one["rewards"])):
            mask, moved = (torch.roll(each["loss_mask"][b], -1, -1).bool() for each in (one, other))
            count = min(int(mask.sum()), int(moved.sum()))
            worst = max(worst, float((before[b][mask][:count] - after[b][moved][:count]).abs().max()))
    return worst


def measure(name: str, actor: Any, good: Trajectories, bad: Trajectories) -> float:
    """How wrong AReaL is: 0 is right. Raises what AReaL raises."""
    if name in ("last_token", "first_token", "reward"):
        prepared = deepcopy(bad)
        for one in prepared:
            one["prox_logp"] = torch.zeros_like(one["logprobs"])
        made = actor.compute_advantages(prepared)
        if name == "last_token":  # the share of rows with a reward whose tokens are all worth nothing
            worth = [bool((one["advantages"][b] * one["loss_mask"][b]).any()) for one, b, _ in rows(made)]
            rewarded = [bool(one["rewards"][b]) for one, b, _ in rows(bad)]
            return 1.0 - sum(worth) / sum(rewarded)
        if name == "first_token":  # marks that came round to the last place of a row
            return float(sum(one["loss_mask"][:, -1].sum() for one in made))
        return float(sum(torch.isnan(one["advantages"]).any() for one in made))
    if name == "shape":  # the largest error of what counts as a sampled token's log-prob
        made = actor.compute_advantages(
            [{**one, "prox_logp": torch.zeros(one["input_ids"].shape)} for one in deepcopy(bad)]
        )
        right = torch.roll(good[0]["logprobs"] * good[0]["loss_mask"], -1, -1)
        return float((made[0]["logprobs"][:, : right.shape[1]] - right).abs().max())
    if name in ("nothing_sampled", "dtype"):
        prepared = deepcopy(bad)
        for one in prepared:
            one["prox_logp"] = torch.zeros_like(one["logprobs"], dtype=torch.float32)
        actor.ppo_update(actor.compute_advantages(prepared))
        return 0.0
    if name == "logprobs":  # how far the weight of a token with log-prob 0 is from the true one
        return change(actor, good, bad) or float(max(abs(one["logprobs"][b, n - 1]) for one, b, n in rows(good)))
    if name == "versions":
        return _interpolation(good, bad)
    if name == "too_long":
        before, actor.config.mb_spec.max_tokens_per_mb = actor.config.mb_spec.max_tokens_per_mb, 64
        try:
            return change(actor, good, bad)
        finally:
            actor.config.mb_spec.max_tokens_per_mb = before
    return change(actor, good, bad)


def _interpolation(good: Trajectories, bad: Trajectories) -> float:
    """The change of AReaL's interpolated proximal log-probs at version 2 when tokens have lost their versions."""
    from areal.trainer.ppo.actor import _resolve_proximal_logp

    found = []
    for batch in (good, bad):
        old = torch.roll(batch[0]["logprobs"], -1, -1)
        values: dict[str, Any] = {"prox_logp_gt": None, "prox_logp_method": "loglinear"}
        values |= {"old_logp": old, "logprobs": old - 1.0}
        versions = torch.roll(batch[0]["versions"], -1, -1)
        mask = torch.roll(good[0]["loss_mask"], -1, -1).bool()
        found.append(_resolve_proximal_logp(**values, versions=versions, current_version=2)[mask])
    return float((found[0] - found[1]).abs().max())
