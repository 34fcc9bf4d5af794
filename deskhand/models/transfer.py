"""Copies between host memory and the model's device. Used by `models.forward` and `engines.hf`.

A plain copy to a GPU waits until all earlier work of the stream is done, so each one stops the host from preparing the
next kernels. Copies through pinned memory do not wait. On other devices these functions are plain copies.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a host tensor on the device, in the order of the current stream, without waiting for it."""
    if device.type != "cuda":
        return values.to(device)
    # Torch reuses pinned memory only after the copies that read it.
    return (values if values.is_pinned() else values.pin_memory()).to(device, non_blocking=True)


def read_back(values: Tensor) -> np.ndarray:
    """Return a tensor's values in host memory. Waits for the work of the current stream that they need, once."""
    if values.device.type != "cuda":
        return values.cpu().numpy()
    copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copied.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))
    done.synchronize()
    return copied.numpy()
