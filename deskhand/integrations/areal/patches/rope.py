"""Correct rotary positions of still images for Qwen2.5-VL.

transformers 5.3, which AReaL 1.0.4 requires, multiplies the position of a still image by the number of tokens per
second of video (its issue 45325, fixed later). Inference servers do not, so AReaL's recomputed log-probs silently
belong to another input. `patch_rope_positions` replaces the method if it is wrong.
"""

from __future__ import annotations

from typing import Any


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


def _misplaces(own: Any) -> bool:
    """Whether a picture of one patch that starts at 3 is placed elsewhere in time when a second takes two tokens."""
    import torch

    return int(own(None, 3, torch.tensor([1, 1, 1]), 1, 1, 2)[0, 0]) != 3
