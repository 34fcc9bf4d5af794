"""Faster layers with the same parameters and names. Used by `models.load`, `models.architectures` and `recipes.tiny`.

Torch multiplies float32 matrices on CPUs with MKL, which uses its AVX-512 kernels on Intel CPUs only; oneDNN, included
in torch, uses them everywhere. Qwen-VL vision towers embed patches with a 3-D convolution whose kernel is one patch;
the equivalent matrix product is several times faster, forward and backward.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CPU_INFORMATION = Path("/proc/cpuinfo")
ROW_STEPS = ((2, 1), (4, 2), (16, 4), (64, 16), (512, 64), (math.inf, 128))
"""(maximum rows of a product, what they are rounded up to a multiple of)."""


@functools.cache
def prefers_onednn() -> bool:
    """Return whether the CPU is not Intel's and torch has oneDNN's linear operator."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "GenuineIntel" not in CPU_INFORMATION.read_text()
    except OSError:
        return False


@functools.cache
def has_fast_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 matrices on this CPU. Where it does not (AVX2 alone), torch's own
    product took 40 times as long as that of float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")


def padded_length(rows: int) -> int:
    """Return `rows` rounded up to one of few numbers.

    oneDNN generates code for each shape and keeps it for the last 1024 shapes, about 400 KB each. The lengths of packed
    batches all differ, so without rounding that takes 400 MB, and up to half of the time of short products.
    """
    step = next((step for limit, step in ROW_STEPS if rows <= limit), ROW_STEPS[-1][1])
    return -(-rows // step) * step


def _padded(input_MK: Tensor) -> Tensor:
    rows = input_MK.shape[0]
    extra = padded_length(rows) - rows
    return nn.functional.pad(input_MK, (0, 0, 0, extra)) if extra else input_MK


class _Product(torch.autograd.Function):
    """`input` [..., K] times the transpose of `weight` [N, K], plus `bias` [N]: [..., N]."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)  # without padding, so that layers with the same input share it
        output = _product(_padded(input.reshape(-1, input.shape[-1])), weight, bias)
        return output.resize_(*input.shape[:-1], len(weight))  # drops the padding; a view could not be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        input, weight = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        gradient_MN = gradient.reshape(-1, gradient.shape[-1])
        rows, padded_MN = len(gradient_MN), _padded(gradient_MN)
        input_grad, weight_grad = None, None
        if wants_input:
            input_grad = _product(padded_MN, weight.t(), None)[:rows].view_as(input)
        if wants_weight:
            weight_grad = _product(padded_MN.t(), _padded(input.reshape(rows, -1)).t(), None)
        return input_grad, weight_grad, gradient_MN.sum(0) if wants_bias else None


def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`nn.functional.linear`, with oneDNN for float32 on CPUs."""
    if input.dtype is torch.float32 and weight.dtype is torch.float32 and input.device.type == "cpu" and input.numel():
        return _Product.apply(input, weight, bias)  # pyright: ignore[reportReturnType]
    return nn.functional.linear(input, weight, bias)


class OneDnnLinear(nn.Linear):
    """A linear layer that uses `product`."""

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


def replace_linear_with_onednn(model: nn.Module) -> None:
    """Switch the linear layers of a model to oneDNN, in place, if it is faster."""
    if prefers_onednn():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear


class PatchProjection(nn.Conv3d):
    """A `Conv3d` over inputs [patches, channels, t, h, w] of the kernel's size."""

    def forward(self, input: Tensor) -> Tensor:
        multiply = product if prefers_onednn() else nn.functional.linear
        return multiply(input.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None, None]


def embed_patches_by_product(model: Any) -> None:
    """Switch the patch embedding of a Qwen-VL model to a matrix product, in place."""
    projection = model.model.visual.patch_embed.proj
    if type(projection) is nn.Conv3d and projection.kernel_size == projection.stride:
        projection.__class__ = PatchProjection
