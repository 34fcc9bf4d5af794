"""One formula for numpy and torch. Invariant: torch is never imported here; whoever passes tensors has it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def namespace(array: Any) -> Any:
    """torch for tensors, numpy for everything else."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def sums_by(values: Any, owners: Any) -> Any:
    """`sums[k] = sum of values[i] with owners[i] == k`, float[largest owner + 1]; differentiable in `values` for tensors.

    `values`: float[N]; `owners`: int64[N], counted from 0.
    """
    count = int(owners.max()) + 1 if len(owners) else 0
    if namespace(values) is np:
        return np.bincount(owners, weights=values, minlength=count)
    return values.new_zeros(count).index_add(0, owners, values)
