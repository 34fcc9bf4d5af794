"""Image features of the vision tower, computed once per image and shared by micro-batches.

Used by `trainer.policy`. The outputs are detached from the tower's graph and become leaves; micro-batches index into
them and accumulate gradients there; `backward` then propagates the sums through the tower. Leaves with gradients are
float32, since the gradients of many sequences add up. If the tower's activations do not fit, images are encoded in
chunks without a graph, and each chunk again in `backward`. Features that an engine with the same
frozen tower has computed are not computed again.

Dimensions: S rows of features (image tokens of all images), N placeholders of a micro-batch, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deskhand.models.forward import encode_images, stack_images, unwrap
from deskhand.types import PreparedImage

KnownFeatures = Callable[[str], tuple[Tensor, ...] | None]
"""Returns the features [tokens, H] of an image by its sha256, one tensor per feature layer; None if unknown."""


def is_frozen(model: Any) -> bool:
    """Return whether the vision tower is not trained."""
    return not any(parameter.requires_grad for parameter in unwrap(model).model.visual.parameters())


class VisionFeatureCache:
    """Features of `images` under the current weights; without `gradients` or with a frozen tower there is no graph.

    `max_patches`: maximum number of patches whose activations are held. With a frozen tower, `known` comes first.
    """

    def __init__(
        self,
        model: Any,
        images: Mapping[str, PreparedImage],
        max_patches: int,
        *,
        gradients: bool,
        known: KnownFeatures | None = None,
    ) -> None:
        self._model = model
        self._device = unwrap(model).lm_head.weight.device
        self._rows: dict[str, Tensor] = {}
        frozen = is_frozen(model)
        self._gradients = gradients and not frozen
        found: dict[str, tuple[Tensor, ...]] = {}
        if known is not None and frozen:
            found = {name: features for name in images if (features := known(name)) is not None}
        self._images = {name: image for name, image in images.items() if name not in found}
        self._chunks = _chunks(self._images, max_patches)
        with torch.set_grad_enabled(self._gradients and len(self._chunks) == 1):
            outputs = [self._encode(chunk) for chunk in self._chunks]
        self._graph = outputs[0] if self._gradients and len(self._chunks) == 1 else None
        outputs += found.values()
        start = 0
        for sha256 in (*self._images, *found):
            end = start + images[sha256].tokens
            self._rows[sha256], start = torch.arange(start, end, device=self._device), end
        self._leaves_SH = tuple(
            torch.cat([layer.detach().to(torch.float32 if self._gradients else layer.dtype) for layer in layers])
            for layers in zip(*outputs, strict=True)
        )
        for leaf_SH in self._leaves_SH:
            leaf_SH.requires_grad_(self._gradients)

    def of(self, hashes: Sequence[str], index_N: Tensor) -> tuple[Tensor, ...]:
        """Return the features [N, H] of placeholders, one tensor per feature layer; () without images.

        `index_N` indexes the concatenated tokens of the images `hashes`.
        """
        if not hashes:
            return ()
        rows_N = torch.cat([self._rows[sha256] for sha256 in hashes])[index_N]
        return tuple(leaf_SH.index_select(0, rows_N) for leaf_SH in self._leaves_SH)

    def backward(self) -> None:
        """Propagate the accumulated gradients of the features through the tower. Call once."""
        gradients = tuple(leaf_SH.grad for leaf_SH in self._leaves_SH)
        if not self._gradients or any(gradient is None for gradient in gradients):
            return
        start = 0
        for chunk in self._chunks:
            end = start + sum(self._images[sha256].tokens for sha256 in chunk)
            outputs = self._graph if self._graph is not None else self._encode(chunk)
            parts = [gradient[start:end] for gradient in gradients if gradient is not None]
            torch.autograd.backward(
                outputs, [part.to(output.dtype) for part, output in zip(parts, outputs, strict=True)]
            )
            start = end
        self._graph = None

    def _encode(self, chunk: list[str]) -> tuple[Tensor, ...]:
        return encode_images(self._model, *stack_images([self._images[name] for name in chunk], self._device))


def _chunks(images: Mapping[str, PreparedImage], patches: int) -> list[list[str]]:
    """Split the images into chunks of at most `patches` patches; a larger image is a chunk of its own."""
    chunks: list[list[str]] = []
    room = 0
    for sha256, image in images.items():
        size = math.prod(image.grid_thw)
        if size > room:
            chunks.append([])
            room = patches
        chunks[-1].append(sha256)
        room -= size
    return chunks
