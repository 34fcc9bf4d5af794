"""Patch embedding as a matrix product. Used by `models.load` and `models.architectures`.

Qwen-VL vision towers embed patches with a 3-D convolution whose kernel is one patch. The equivalent matrix product,
with the same parameters, is several times faster, forward and backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deskhand.models.onednn_linear import prefers_onednn, product


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
