"""Muon for a model's hidden matrices, with AdamW for all its other parameters (`trainer.optimizer: muon`).

Used by `trainer.optimizer` and `recipes.tiny.pretrain`. Muon orthogonalizes the momentum of a matrix (Jordan et al.,
2024, https://kellerjordan.github.io/posts/muon/), here with torch's own implementation. Its update is scaled to the
root mean square of AdamW's (Liu et al., arXiv:2502.16982, section 2.2), so both use learning rates of the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deskhand.models.fast_layers import has_fast_bfloat16

TABLES = ("embed_tokens", "lm_head", "pos_embed", "patch_embed")
"""Parts of the names of matrices that map ids, positions or pixels: AdamW trains them."""


class MuonAdamW(torch.optim.Optimizer):
    """Muon with Nesterov momentum 0.95 for hidden matrices; AdamW without weight decay for tables, gains and biases.

    Args:
        parameters: Tensors to train, by the names of the model.
        learning_rate: Learning rate of AdamW, and of Muon unless `matrix_learning_rate` is given.
        betas: AdamW's decays.
        weight_decay: Muon's decoupled weight decay.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float,
        matrix_learning_rate: float | None = None,
    ) -> None:
        matrices, others = list[Tensor](), list[Tensor]()
        for name, tensor in parameters.items():
            (matrices if is_hidden_matrix(name, tensor) else others).append(tensor)
        self._parts = list[tuple[torch.optim.Optimizer, str]]()
        """The optimizers, each with a setting that only its own parameter groups have."""
        if matrices:
            rate = learning_rate if matrix_learning_rate is None else matrix_learning_rate
            muon = torch.optim.Muon(matrices, lr=rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            self._parts.append((muon, "momentum"))
        if others:
            adamw = torch.optim.AdamW(others, lr=learning_rate, betas=betas, weight_decay=0.0, fused=False)
            self._parts.append((adamw, "betas"))
        super().__init__([group for part, _ in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters with a gradient."""
        for part, setting in self._parts:
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if setting in group]
            on_cpu = part.param_groups[0]["params"][0].device.type == "cpu"
            with Float32Products() if on_cpu and not has_fast_bfloat16() else nullcontext():
                part.step()


def is_hidden_matrix(name: str, tensor: Tensor) -> bool:
    """Return whether Muon trains a parameter."""
    return tensor.ndim == 2 and not any(table in name for table in TABLES)


class Float32Products(TorchDispatchMode):
    """Multiplies bfloat16 matrices in float32, for torch's Muon, which always rounds gradients to bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_product = func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        if is_product and args[0].dtype is torch.bfloat16:
            return func(*(arg.float() for arg in args), **(kwargs or {})).bfloat16()
        return func(*args, **(kwargs or {}))
