"""Training samples as AReaL's tensors. Nothing is rendered, tokenized or preprocessed here.

Used by `workflow` and `run_dataset`. A trajectory has B rows of T tokens, right-padded:

| key                 | form                                                                                 |
|---------------------|--------------------------------------------------------------------------------------|
| `input_ids`         | int64[B, T], placeholders expanded                                                   |
| `attention_mask`    | bool[B, T], False on padding only                                                    |
| `loss_mask`         | int32[B, T], 1 on sampled tokens; the last token of a row is one                     |
| `logprobs`          | float32[B, T], of the sampled token at its own position, 0 elsewhere                 |
| `versions`          | int32[B, T], of the weights that sampled it, -1 elsewhere                            |
| `mm_token_type_ids` | int64[B, T], 1 on image placeholders                                                 |
| `rewards`           | float32[B], the advantage of the row's episode, or its reward                        |
| `multi_modal_input` | list of B dictionaries: `pixel_values` float32[patches, values], `image_grid_thw`    |
|                     | int64[images, 3]; `{}` without images                                                |

`rewards` holds advantages, because groups are compared here. With `reward_norm` and `adv_norm` off, `discount` and
`gae_lambda` 1 and `kl_ctl` 0, AReaL assigns exactly this number to every sampled token of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from deskhand.models.forward import expand_pixels, join_pixels
from deskhand.recorder.training_rows import TrainingRow, to_arrays
from deskhand.trainer.batch import TrainingSample
from deskhand.types import PreparedImage


def samples_to_tensors(
    samples: Sequence[TrainingSample],
    images: Mapping[str, PreparedImage],
    image_id: int,
    *,
    normalize_by_episode: bool = False,
    has_vision: bool = True,
) -> dict[str, Any]:
    """Return the tensors of a group's rows; without image keys if the model has no vision.

    AReaL's loss is the mean over all tokens of a batch, which favors long episodes. With `normalize_by_episode`, a
    row's advantage is scaled by (tokens of the group / episodes of the group) / tokens of its episode, so that all
    episodes of a group have equal weight, as in the local trainer.
    """
    scales = _scales(samples) if normalize_by_episode else [1.0] * len(samples)
    rows = [
        TrainingRow(sample.sequence, sample.advantage * scale) for sample, scale in zip(samples, scales, strict=True)
    ]
    arrays = to_arrays(rows, image_id)
    del arrays["weights"]
    if not has_vision:
        del arrays["mm_token_type_ids"]
    found: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if has_vision:
        found["multi_modal_input"] = [_image_tensors(sample, images) for sample in samples]
    return found


def _image_tensors(sample: TrainingSample, images: Mapping[str, PreparedImage]) -> dict[str, torch.Tensor]:
    shown = [images[span.sha256] for span in sample.sequence.spans]
    if not shown:
        return {}
    return {
        "pixel_values": expand_pixels(join_pixels(shown), shown[0]),
        "image_grid_thw": torch.tensor([image.grid_thw for image in shown], dtype=torch.int64),
    }


def _scales(samples: Sequence[TrainingSample]) -> list[float]:
    tokens: dict[str, int] = {}
    for sample in samples:
        tokens[sample.episode_id] = tokens.get(sample.episode_id, 0) + int(np.sum(sample.sequence.loss_mask))
    mean = sum(tokens.values()) / max(1, len(tokens))
    return [mean / tokens[sample.episode_id] for sample in samples]


def save_trajectory(tensors: Mapping[str, Any], path: Path) -> None:
    """Write a trajectory as safetensors; the image tensors of row 3 are `3.pixel_values` and `3.image_grid_thw`."""
    flat = {name: value for name, value in tensors.items() if name != "multi_modal_input"}
    for row, shown in enumerate(tensors.get("multi_modal_input", ())):
        flat |= {f"{row}.{name}": value for name, value in shown.items()}
    save_file(flat, path, metadata={"images": str("multi_modal_input" in tensors)})


def load_trajectory(path: Path) -> dict[str, Any]:
    """Read what `save_trajectory` wrote: tensors that AReaL concatenates with those of other groups."""
    with safe_open(path, framework="pt") as file:
        flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        has_images = file.metadata()["images"] == "True"
    found = {name: value for name, value in flat.items() if "." not in name}
    if has_images:
        found["multi_modal_input"] = [
            {name.partition(".")[2]: value for name, value in flat.items() if name.startswith(f"{row}.")}
            for row in range(len(found["input_ids"]))
        ]
    return found
