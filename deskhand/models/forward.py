"""Forward pass: ids, spans and pixels to hidden states. Used by `engines.hf` and by the trainer.

A *row* is a token sequence with expanded placeholders and the spans of its images. The trainer packs rows one after
another (`collate`); the engine pads them on the right. Images are identified by hash: an image that occurs several
times in a batch is encoded once. Decoder layers are called directly; `tests/models/test_forward.py` compares them with
the checkpoint's own forward pass.

Dimensions: B rows, T tokens, H hidden size, N image tokens, W rows of logits, V vocabulary.

Invariant: engine and trainer both use this module, so they compute the same values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from deskhand.errors import ConfigError, RecordError
from deskhand.models.packed_attention import separate_packed_rows
from deskhand.models.transfer import to_device
from deskhand.types import ImageSpan, PreparedImage, StoredPixels


class ModelSequence(Protocol):
    """A `Prompt`, a recorder `Sequence` or any other object with ids and spans."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def spans(self) -> tuple[ImageSpan, ...]: ...


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Packed rows on the model's device, one after another. Unique images are in order of first occurrence."""

    input_ids_1T: Tensor
    """int64."""
    position_ids_31T: Tensor
    """int64; temporal, height and width positions in each row."""
    lengths: tuple[int, ...]
    """Tokens of each row."""
    image_hashes: tuple[str, ...]
    placeholder_index_N: Tensor
    """Indices of the placeholders in the packed rows."""
    feature_index_N: Tensor
    """For each placeholder its row in the concatenated features of the unique images."""


def unwrap(model: Any) -> Any:
    """Return the `...ForConditionalGeneration` model inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_row(row: ModelSequence, images: Mapping[str, PreparedImage], image_token_id: int) -> None:
    """Raise `RecordError("placeholders")` if the placeholders of a row are not exactly those of its images."""
    covered = end = 0
    for span in row.spans:
        if span.sha256 not in images:
            raise RecordError("placeholders", f"image {span.sha256[:12]} has no pixels")
        expected = images[span.sha256].tokens
        if span.count != expected:
            raise RecordError(
                "placeholders", f"image {span.sha256[:12]} takes {expected} placeholders, its span has {span.count}"
            )
        if span.start < end or row.token_ids[span.start : span.start + span.count] != (image_token_id,) * span.count:
            raise RecordError("placeholders", f"span {span.start}+{span.count} does not cover placeholders only")
        end = span.start + span.count
        covered += span.count
    found = row.token_ids.count(image_token_id)
    if found != covered:
        raise RecordError("placeholders", f"{found} placeholders in the ids, {covered} in the spans")


def positions(
    length: int, spans: Iterable[ImageSpan], images: Mapping[str, PreparedImage], merge_size: int
) -> tuple[np.ndarray, int]:
    """Return the rotary positions int64[3, length] of a row, and the position of the following token.

    Text advances all three dimensions by one per token. An image's tokens are on its (t, h, w) grid from the current
    position on; the text after it starts at that position plus the longer side (Qwen2-VL, arXiv:2409.12191, section
    2.1).
    """
    positions_3T = np.empty((3, length), dtype=np.int64)
    index = position = 0
    for span in spans:
        text = span.start - index
        positions_3T[:, index : span.start] = np.arange(position, position + text)
        position += text
        frames, height, width = images[span.sha256].grid_thw
        height, width = height // merge_size, width // merge_size
        index = span.start + span.count
        positions_3T[:, span.start : index] = np.indices((frames, height, width)).reshape(3, -1) + position
        position += max(height, width)
    positions_3T[:, index:] = np.arange(position, position + length - index)
    return positions_3T, position + length - index


def check_positions(model: Any) -> None:
    """Raise `ConfigError` if `positions` differs from transformers for a row with two images."""
    core = unwrap(model)
    image_id, merge = core.config.image_token_id, core.config.vision_config.spatial_merge_size
    grids = ((1, 2 * merge, 3 * merge), (1, 4 * merge, merge))
    images = {
        f"{n}": PreparedImage(f"{n}", None, grid, math.prod(grid) // merge**2, 0, 0) for n, grid in enumerate(grids)
    }
    ids, spans = [0] * 3, list[ImageSpan]()
    for name, image in images.items():
        spans.append(ImageSpan(len(ids), image.tokens, name))
        ids += [image_id] * image.tokens + [0] * 2
    ids_1T = torch.tensor([ids])
    expected, _ = core.model.get_rope_index(
        ids_1T,
        mm_token_type_ids=(ids_1T == image_id).int(),
        image_grid_thw=torch.tensor(grids),
        attention_mask=torch.ones_like(ids_1T),
    )
    found, _ = positions(len(ids), spans, images, merge)
    if not np.array_equal(expected[:, 0].numpy(), found):
        raise ConfigError("transformers: rotary positions of images differ; install the pinned version")


def collate(rows: Sequence[ModelSequence], images: Mapping[str, PreparedImage], model: Any) -> ModelInputs:
    """Pack rows, without pixels. Raises `RecordError` if placeholders and images differ."""
    core = unwrap(model)
    image_token_id, merge_size = core.config.image_token_id, core.config.vision_config.spatial_merge_size
    device = core.lm_head.weight.device
    lengths = tuple(len(row.token_ids) for row in rows)
    input_ids_T = np.empty(sum(lengths), dtype=np.int64)
    position_ids_3T = np.empty((3, sum(lengths)), dtype=np.int64)
    offsets, total, end = dict[str, int](), 0, 0
    placeholder_parts, feature_parts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for row, length in zip(rows, lengths, strict=True):
        check_row(row, images, image_token_id)
        first, end = end, end + length
        input_ids_T[first:end] = row.token_ids
        position_ids_3T[:, first:end], _ = positions(length, row.spans, images, merge_size)
        for span in row.spans:
            if span.sha256 not in offsets:
                offsets[span.sha256] = total
                total += span.count
            placeholder_parts.append(np.arange(first + span.start, first + span.start + span.count))
            feature_parts.append(np.arange(offsets[span.sha256], offsets[span.sha256] + span.count))

    def put(array: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(array), device)

    return ModelInputs(
        input_ids_1T=put(input_ids_T[None]),
        position_ids_31T=put(position_ids_3T[:, None]),
        lengths=lengths,
        image_hashes=tuple(offsets),
        placeholder_index_N=put(np.concatenate(placeholder_parts)),
        feature_index_N=put(np.concatenate(feature_parts)),
    )


def stack_images(images: Sequence[PreparedImage], device: Any) -> tuple[Tensor, Tensor]:
    """Return pixels and grids for the vision tower.

    Raises `RecordError("pixels")` if an image's patches differ from those first prepared for it.
    """
    joined, end = join_pixels(images), 0
    for image in images:
        start, end = end, end + math.prod(image.grid_thw)
        if image.checksum is not None and not image.checksum.matches(joined[start:end].numpy()):
            raise RecordError("pixels", f"the patches at {start} are not those prepared for image {image.sha256[:12]}")
    grids = torch.tensor([image.grid_thw for image in images], dtype=torch.int64, device=device)
    return expand_pixels(joined, images[0], device), grids


def join_pixels(images: Sequence[PreparedImage]) -> Tensor:
    """Return the concatenated stored patches of the images: uint8[patches, channels, values of one frame] for
    `expand_pixels`, or the values float32[patches, patch values] of a processor that is not looked up."""
    rows, first = sum(len(image.pixel_values) for image in images), _stored(images[0])
    dtype = torch.uint8 if first.dtype == np.uint8 else torch.float32
    joined = torch.empty((rows, *first.shape[1:]), dtype=dtype)
    end = 0
    for image in images:  # one by one, because evicted images are prepared again and freed after the copy
        start, end = end, end + len(image.pixel_values)
        joined.numpy()[start:end] = first if image is images[0] else _stored(image)
    return joined


def _stored(image: PreparedImage) -> np.ndarray:
    values = image.pixel_values
    return values.stored() if isinstance(values, StoredPixels) else np.asarray(values)


def expand_pixels(joined: Tensor, image: PreparedImage, device: Any = "cpu") -> Tensor:
    """Return the values float32[patches, patch values] of joined patches. Bytes are looked up on the device.

    `image` is any of the images; they share one table.
    """
    values = image.pixel_values
    if joined.dtype != torch.uint8 or not isinstance(values, StoredPixels) or values.lookup.table_CV is None:
        return to_device(joined, torch.device(device))
    if torch.device(device).type == "cpu":
        expanded = torch.empty(values.lookup.shape(joined.numpy()))  # in torch's memory, which benchmarks measure
        values.lookup.values(joined.numpy(), expanded.numpy())
        return expanded
    table_CV = to_device(torch.from_numpy(values.lookup.table_CV), torch.device(device))
    return expand_on_device(to_device(joined, torch.device(device)), table_CV, values.lookup.frames)


def expand_on_device(patches_NCP: Tensor, table_CV: Tensor, frames: int) -> Tensor:
    """`PatchLookup.values` with tensors of one device."""
    count, channels, size = patches_NCP.shape
    values_NCFP = table_CV.new_empty((count, channels, frames, size))
    for channel in range(channels):
        values_NCFP[:, channel] = table_CV[channel][patches_NCP[:, channel].long()].unsqueeze(1)
    return values_NCFP.reshape(count, -1)


def encode_images(model: Any, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, ...]:
    """Return concatenated image features: embeddings [N, H], then one [N, H] per DeepStack layer (Qwen3-VL)."""
    output = unwrap(model).model.get_image_features(pixel_values, image_grid_thw, return_dict=True)
    deepstack = getattr(output, "deepstack_features", None) or ()
    return tuple(map(_joined, (output.pooler_output, *deepstack)))


def _joined(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the features of all images as one tensor; transformers 5.3 has deepstack layers that are."""
    return features if isinstance(features, Tensor) else torch.cat(tuple(features))


def forward_decoder(
    model: Any,
    input_ids_BT: Tensor,
    position_ids_3BT: Tensor,
    features: tuple[Tensor, ...] = (),
    placeholder_index_N: Tensor | None = None,
    mask: Tensor | None = None,
    cache: Any = None,
    recompute: bool = False,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """Run the language model and return the hidden states after the last norm, [B, T, H].

    Args:
        features: Embeddings and DeepStack features [N, H] of the placeholders.
        placeholder_index_N: Indices of the placeholders in the flattened (B*T) batch.
        mask: bool[B, 1, T, keys], True where a token may attend; None means causal.
        cache: Object whose `update(key, value, layer)` returns all keys and values to attend to.
        recompute: Recompute each layer in the backward pass instead of storing activations (arXiv:1604.06174).
        lengths: Tokens of each of the rows that are packed into one (B is 1); they attend to themselves only.
    """
    text = unwrap(model).model.language_model
    packing: dict[str, Any] = {}
    if lengths is not None:
        separate_packed_rows()
        packing["cu_seq_lens_q"] = tuple(accumulate(lengths, initial=0))
    hidden_BTH = text.embed_tokens(input_ids_BT)
    if features and placeholder_index_N is not None:
        hidden_BTH = _place(hidden_BTH, placeholder_index_N, features[0], replace=True)
    rotary = text.rotary_emb(hidden_BTH, position_ids_3BT)
    for index, layer in enumerate(text.layers):
        run = partial(layer, position_embeddings=rotary, attention_mask=mask, past_key_values=cache, **packing)
        use_checkpoint = recompute and torch.is_grad_enabled()
        hidden_BTH = checkpoint(run, hidden_BTH, use_reentrant=False) if use_checkpoint else run(hidden_BTH)
        if index + 1 < len(features) and placeholder_index_N is not None:
            hidden_BTH = _place(hidden_BTH, placeholder_index_N, features[index + 1], replace=False)
    return text.norm(hidden_BTH)


def _place(hidden_BTH: Tensor, index_N: Tensor, features_NH: Tensor, *, replace: bool) -> Tensor:
    """Replace the placeholders of a batch by features, or add features to them."""
    flat = hidden_BTH.reshape(-1, hidden_BTH.shape[-1])
    features_NH = features_NH.to(flat.dtype)
    flat = flat.index_copy(0, index_N, features_NH) if replace else flat.index_add(0, index_N, features_NH)
    return flat.view_as(hidden_BTH)


def log_softmax(logits_WV: Tensor, temperature: float, banned_ids: Sequence[int]) -> Tensor:
    """Return float32 log-probs [W, V] of logits divided by the temperature (0 counts as 1), without banned ids."""
    logits_WV = logits_WV.float()
    if banned_ids:
        banned = torch.tensor(list(banned_ids), device=logits_WV.device)
        logits_WV = logits_WV.index_fill(1, banned, float("-inf"))
    if temperature not in (0.0, 1.0):
        logits_WV = logits_WV / temperature
    return torch.log_softmax(logits_WV, dim=-1)
