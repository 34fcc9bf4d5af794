"""Patch embedding as one matrix product. Invariant: same parameters, same names, same result as the convolution it stands for.

A Qwen-VL tower embeds patches by a 3-D convolution whose kernel is exactly one patch, so every output is one dot product;
said as a matrix product it is several times cheaper, forward and backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deskhand.models.onednn_linear import prefers_onednn, product


class PatchProjection(nn.Conv3d):
    """A `Conv3d` over inputs [patches, channels, t, h, w] that are each as large as the kernel."""

    def forward(self, input: Tensor) -> Tensor:
        multiply = product if prefers_onednn() else nn.functional.linear
        return multiply(input.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None, None]


def embed_patches_by_product(model: Any) -> None:
    """Let the vision tower of a Qwen-VL model embed its patches by a matrix product, in place."""
    projection = model.model.visual.patch_embed.proj
    if type(projection) is nn.Conv3d and projection.kernel_size == projection.stride:
        projection.__class__ = PatchProjection
