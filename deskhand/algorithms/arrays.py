"""Array functions for numpy and torch. This module does not import torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def namespace(array: Any) -> Any:
    """Return torch for tensors, numpy for everything else."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def sums_by(values: Any, owners: Any) -> Any:
    """Return the sum of `values` (float[N]) by owner (int64[N], from 0), float[max owner + 1].

    Differentiable for tensors.
    """
    count = int(owners.max()) + 1 if len(owners) else 0
    if namespace(values) is np:
        return np.bincount(owners, weights=values, minlength=count)
    return values.new_zeros(count).index_add(0, owners, values)
