"""Patches of transformers 5.3, which AReaL 1.0.4 requires, in its workers.

`patch_rope_positions`: the position of a still image of Qwen2.5-VL is multiplied by the number of tokens per second of
video (transformers' issue 45325, fixed later). Inference servers do not, so AReaL's recomputed log-probs silently
belong to another input.

`patch_lora_positions`: AReaL asks `engine.model.model` for the positions of a row with images. With LoRA peft's wrapper
stands before the model, so that this is one level above the module that knows them, and the first update fails.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.venvs import install_command

_POSITIONS = "compute_3d_position_ids"
_QWEN_VL = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
"""Families that Deskhand trains: transformers' module, and how names of its classes begin."""


def patch_rope_positions() -> bool:
    """Place still pictures right in this process; False where nothing was wrong. A second call does nothing."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    own = getattr(Qwen2_5_VLModel, "get_vision_position_ids", None)
    if own is None or not _misplaces(own):
        return False

    def placed(
        self: Any,
        start_position: int,
        grid_thw: Any,
        temp_merge_size: int = 1,
        spatial_merge_size: int = 1,
        time_interval: int = 1,
        device: Any = None,
    ) -> Any:
        interval = 1 if int(grid_thw[0]) == 1 else time_interval
        return own(self, start_position, grid_thw, temp_merge_size, spatial_merge_size, interval, device=device)

    Qwen2_5_VLModel.get_vision_position_ids = placed  # pyright: ignore[reportAttributeAccessIssue]
    return True


def patch_lora_positions() -> None:
    """Let whole models answer for positions as the module inside of them does. A second call does nothing.

    Raises `ConfigError` if this transformers computes positions elsewhere.
    """
    for family, name in _QWEN_VL.items():
        module = import_module(f"transformers.models.{family}.modeling_{family}")
        if not hasattr(getattr(module, f"{name}Model"), _POSITIONS):
            raise ConfigError(
                f"transformers {import_module('transformers').__version__}: {name}Model has no {_POSITIONS}, which "
                f"AReaL's FSDP engine calls; install AReaL's version with {install_command('areal')}"
            )
        whole = getattr(module, f"{name}ForConditionalGeneration")
        if not hasattr(whole, _POSITIONS):
            setattr(whole, _POSITIONS, _ask_inner)


def _ask_inner(self: Any, **named: Any) -> Tensor:
    return getattr(self.model, _POSITIONS)(**named)


def _misplaces(own: Any) -> bool:
    """Whether a picture of one patch that starts at 3 is placed elsewhere in time when a second takes two tokens."""
    return int(own(None, 3, torch.tensor([1, 1, 1]), 1, 1, 2)[0, 0]) != 3
