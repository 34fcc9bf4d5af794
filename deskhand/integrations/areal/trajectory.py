"""Checks of trajectories before AReaL trains on them.

Used by `workflow` and `run_dataset`. Each rule covers a mistake that AReaL 1.0.4 does not notice, or notices by
losing a whole step; `tests/contract/areal` demonstrates each on AReaL's own code.

| cause            | effect in AReaL |
|---|---|
| `keys`           | cannot be concatenated with the batch: the step fails |
| `shape`          | a short array is padded at its end: values of other tokens, no error |
| `dtype`          | float64 next to float32 fails the step |
| `padding`        | rows are cut to their length from the left: placeholders are lost and the step fails |
| `last_token`     | the reward is placed where nothing is trained: advantages of 0, no error |
| `first_token`    | masks are rolled by one: the row's last position is trained instead |
| `nothing_sampled`| a batch of such rows has weight 0: the step fails |
| `pictures`       | an empty list, or one shorter than the rows, fails the step |
| `placeholders`   | only totals are compared: images of other sizes are misplaced, no error |
| `types`          | placeholders get text positions: other log-probs, no error |
| `banned_id`      | a sampled image id is taken for an image: the step fails |
| `logprobs`       | a missing one counts as probability 1: wrong importance weight, no error |
| `versions`       | a token without a version has no staleness and no interpolated proximal policy, no error |
| `reward`         | a non-finite one makes every gradient of the batch non-finite |
| `no_picture`     | a rank whose batch has no image fails |
| `too_long`       | a row above `max_tokens_per_mb` fails the step |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deskhand.errors import RecordError

KEYS = {
    "input_ids": "int64",
    "attention_mask": "bool",
    "loss_mask": "int32",
    "logprobs": "float32",
    "versions": "int32",
    "mm_token_type_ids": "int64",
    "rewards": "float32",
}
PICTURES, TYPES = "multi_modal_input", "mm_token_type_ids"
_HIGHEST = 1e-6
"""A log-prob may be above 0 by rounding."""


@dataclass(frozen=True)
class TrajectoryLimits:
    """Limits of the model and the run."""

    image_id: int
    merge_size: int
    """Patches per placeholder along each side."""
    banned_ids: tuple[int, ...] = ()
    """Ids that are never sampled; the placeholder is one of them."""
    max_tokens: int | None = None
    """AReaL's `mb_spec.max_tokens_per_mb`: the longest row."""
    needs_picture: bool = True
    """False for a run on a model without vision."""


def check_trajectory(tensors: Mapping[str, Any], limits: TrajectoryLimits) -> None:
    """Raise `RecordError`, with one of the causes above, unless AReaL trains this trajectory as it was sampled."""
    arrays = _arrays(tensors, KEYS if limits.needs_picture else {name: KEYS[name] for name in KEYS if name != TYPES})
    for b in range(len(arrays["input_ids"])):
        _check_row(b, {name: array[b] for name, array in arrays.items()}, limits)
    if not limits.needs_picture:
        if PICTURES in tensors or TYPES in tensors:
            raise RecordError("keys", f"the model has no vision; remove {PICTURES} and {TYPES}")
        return
    pictures = tensors.get(PICTURES)
    if not isinstance(pictures, list) or len(pictures) != len(arrays["input_ids"]):
        found = f"{len(pictures)} entries" if isinstance(pictures, list) else type(pictures).__name__
        raise RecordError("pictures", f"{PICTURES} is {found}; it is a list with one dictionary for each row")
    for b, shown in enumerate(pictures):
        ids = arrays["input_ids"][b][arrays["attention_mask"][b]]
        _check_pictures(b, shown, ids, limits)
    if not any(pictures):
        raise RecordError(
            "no_picture", "no row of the trajectory shows a picture; AReaL needs one in each rank's batch"
        )


def _arrays(tensors: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, np.ndarray]:
    missing = [name for name in keys if name not in tensors]
    if missing:
        raise RecordError("keys", f"a trajectory without {', '.join(missing)}")
    arrays = {name: np.asarray(tensors[name]) for name in keys}
    shape = arrays["input_ids"].shape
    if len(shape) != 2 or not shape[0]:
        raise RecordError("shape", f"input_ids is {shape}; it is [rows, tokens] with at least one row")
    for name, dtype in keys.items():
        wanted = shape[:1] if name == "rewards" else shape
        if arrays[name].shape != wanted:
            raise RecordError("shape", f"{name} is {arrays[name].shape}, input_ids is {shape}")
        if arrays[name].dtype != dtype:
            raise RecordError("dtype", f"{name} is {arrays[name].dtype}; it must be {dtype}")
    return arrays


def _check_row(b: int, row: dict[str, np.ndarray], limits: TrajectoryLimits) -> None:
    mask, sampled = row["attention_mask"], row["loss_mask"] != 0
    length = int(mask.sum())
    if not mask[:length].all() or sampled[length:].any():
        raise RecordError("padding", f"row {b}: its tokens are not the first {length}, all padding after them")
    if limits.max_tokens is not None and length > limits.max_tokens:
        raise RecordError("too_long", f"row {b} has {length} tokens; a micro-batch takes {limits.max_tokens}")
    if not sampled.any():
        raise RecordError("nothing_sampled", f"row {b} has no sampled token")
    if sampled[0]:
        raise RecordError("first_token", f"row {b}: its first token is marked as sampled; nothing precedes it")
    if not sampled[length - 1]:
        raise RecordError("last_token", f"row {b}: its last token was not sampled; cut the row after the last that was")
    banned = set(row["input_ids"][sampled].tolist()) & {limits.image_id, *limits.banned_ids}
    if banned:
        raise RecordError("banned_id", f"row {b}: ids {sorted(banned)} were sampled, which stand for pictures")
    values, elsewhere = row["logprobs"][sampled], row["logprobs"][~sampled]
    if not np.isfinite(values).all() or values.max() > _HIGHEST or elsewhere.any():
        raise RecordError("logprobs", f"row {b}: a sampled token's log-prob is no log-prob, or another token has one")
    if not values.any():
        raise RecordError("logprobs", f"row {b}: no sampled token has a log-prob")
    versions = row["versions"]
    if versions[sampled].min() < 0 or (versions[~sampled] != -1).any():
        raise RecordError("versions", f"row {b}: a sampled token has no version, or another token has one")
    if not np.isfinite(row["rewards"]):
        raise RecordError("reward", f"row {b} is worth {row['rewards']}")
    types = (row["input_ids"] == limits.image_id) & mask
    if TYPES in row and (row[TYPES] != types).any():
        raise RecordError("types", f"row {b}: mm_token_type_ids are not 1 exactly where its placeholders are")


def _check_pictures(b: int, shown: Any, ids: np.ndarray, limits: TrajectoryLimits) -> None:
    """Each run of placeholders is one picture of the row, in order, as long as its grid says."""
    if not isinstance(shown, Mapping):
        raise RecordError(
            "pictures", f"row {b}: its pictures are {type(shown).__name__}; they are a dictionary, {{}} for none"
        )
    edges = np.flatnonzero(np.diff(ids == limits.image_id, prepend=False, append=False))
    runs = (edges[1::2] - edges[::2]).tolist()
    grids = np.asarray(shown["image_grid_thw"]) if "image_grid_thw" in shown else np.zeros((0, 3), np.int64)
    patches = [int(np.prod(grid)) for grid in grids]
    if runs != [count // limits.merge_size**2 for count in patches]:
        raise RecordError("placeholders", f"row {b} has runs of {runs} placeholders for pictures of {patches} patches")
    held = len(shown["pixel_values"]) if "pixel_values" in shown else 0
    if held != sum(patches):
        raise RecordError("placeholders", f"row {b} has {held} patches of pixels for grids of {sum(patches)}")
