"""Memory of one micro-batch, measured on torch's meta device with the trainer's own code.

Used by `trainer.memory_estimate`. The model is built without memory, one micro-batch runs forward and backward through
`Policy`, and `AllocationMeter` counts. Attention is traced like fused kernels, which hold no matrix of scores
(FlashAttention-2, arXiv:2307.08691).

Dimensions: B sequences, T tokens of a sequence, K keys, N image tokens, W sampled tokens, S patches.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.integrations import moe
from transformers.integrations.sdpa_attention import repeat_kv

from deskhand.config.trainer import PolicyConfig
from deskhand.models import architectures
from deskhand.models.families import FAMILIES
from deskhand.models.forward import ModelInputs, forward_decoder
from deskhand.models.linear_attention import StateView, linear_layers
from deskhand.trainer.batch import TrainBatch
from deskhand.trainer.lora import check_quantizable
from deskhand.trainer.policy import Policy

ATTENTION = "deskhand_traced"
CHUNK = 64
"""Tokens of a chunk of the gated delta rule in transformers."""


@dataclass(frozen=True)
class MicrobatchShape:
    """Micro-batch of `tokens` tokens, including `images` image tokens and `sampled` trained tokens."""

    tokens: int
    images: int
    sampled: int


@dataclass(frozen=True)
class MetaTrace:
    """Trace of the language model, in bytes unless stated otherwise."""

    parameters: float
    """Number of weights with the head, without LoRA; tied ones count once."""
    trained: float
    """Number of trained weights."""
    weights: float
    """Weights including LoRA."""
    experts: float
    """Number of weights of all experts."""
    packable: float
    """Number of weights that QLoRA quantizes to 4 bits."""
    largest_packable: float
    """Number of weights of the largest quantized matrix."""
    saved: float
    """Activations saved for the backward pass."""
    logits: float
    """Logits, log-probs and tensors saved by the loss."""
    passing: float
    """Additional bytes at the peak of the backward pass."""
    prefill: float
    """Peak of an engine's prefill of one sequence, without the KV cache."""


class AllocationMeter(TorchDispatchMode):
    """Context that counts the bytes of new storages: `live` now, and `peak`. A storage counts once, until it is freed.

    It works on real tensors and on the meta device, which has shapes but no memory. Allocations inside kernels are not
    counted.
    """

    def __init__(self, *held: torch.Tensor) -> None:
        """`held`: tensors that exist already; they and their gradients are not counted."""
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        for tensor in (*held, *(each.grad for each in held if each.grad is not None)):
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is not None and known() is not None:
            return
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)


class _FusedAttention(torch.autograd.Function):
    """Saves what a fused kernel saves: inputs, output and one number per query."""

    @staticmethod
    def forward(ctx: Any, query_BNTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor) -> Tensor:
        output_BTND = query_BNTD.new_empty(query_BNTD.transpose(1, 2).shape)
        sums_BNT = query_BNTD.new_empty(query_BNTD.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query_BNTD, key_BKTD, value_BKTD, output_BTND, sums_BNT)
        return output_BTND

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query_BNTD, key_BKTD, value_BKTD, *_ = ctx.saved_tensors
        return torch.empty_like(query_BNTD), torch.empty_like(key_BKTD), torch.empty_like(value_BKTD)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **_: Any
) -> tuple[Tensor, None]:
    if attention_mask is not None:  # transformers then repeats the keys for every head, and torch converts the mask
        key, value = (repeat_kv(part, module.num_key_value_groups) for part in (key, value))
        attention_mask = attention_mask.to(query.dtype)
    return _FusedAttention.apply(query, key, value), None  # pyright: ignore[reportReturnType]


def _chunks_as_rows(layer: Any) -> None:
    """Let transformers' gated delta rule compute all chunks of a row at once on the meta device, in this process.

    Its loop over chunks would take most of the time; as rows of one chunk they take the same memory.
    """
    module = sys.modules[type(layer).__mro__[1].__module__]
    own = module.torch_chunk_gated_delta_rule
    if getattr(own, "traces_chunks", False):
        return

    def rule(query: Tensor, *others: Tensor, initial_state: Tensor | None = None, **named: Any) -> tuple[Any, ...]:
        if query.device.type != "meta":
            return own(query, *others, initial_state=initial_state, **named)
        names = [name for name, value in named.items() if isinstance(value, Tensor)]
        rows, length = query.shape[:2]
        chunks = [_chunks(part) for part in (query, *others, *(named[name] for name in names))]
        named |= dict(zip(names, chunks[1 + len(others) :], strict=True))
        if initial_state is not None:
            initial_state = initial_state.repeat_interleave(len(chunks[0]) // rows, 0)
        output, state = own(*chunks[: 1 + len(others)], initial_state=initial_state, **named)
        return output.unflatten(0, (rows, -1)).flatten(1, 2)[:, :length], None if state is None else state[-rows:]

    rule.traces_chunks = True  # type: ignore[attr-defined]
    module.torch_chunk_gated_delta_rule = rule  # pyright: ignore[reportAttributeAccessIssue]


def _chunks(part_BTX: Tensor) -> Tensor:
    """Return the chunks of all rows, [rows * chunks, tokens of a chunk, ...]."""
    missing = -part_BTX.shape[1] % CHUNK
    if missing:
        part_BTX = torch.cat([part_BTX, part_BTX.new_zeros(len(part_BTX), missing, *part_BTX.shape[2:])], 1)
    return part_BTX.unflatten(1, (-1, CHUNK)).flatten(0, 1)


def _trace_grouped_products() -> None:
    """Let transformers compute experts on the meta device with its own operator, in this process.

    Torch's operator has only bfloat16 there.
    """
    own = getattr(moe, "_can_use_grouped_mm", None)
    if own is None or getattr(own, "traces_experts", False):
        return

    def can_use(input: Tensor, weight: Tensor, offs: Tensor) -> bool:
        return weight.device.type != "meta" and own(input, weight, offs)

    can_use.traces_experts = True  # type: ignore[attr-defined]
    moe._can_use_grouped_mm = can_use


def _built(values: dict[str, Any], dtype: str) -> Any:
    """Build the model; call inside `torch.device("meta")`."""
    AttentionInterface.register(ATTENTION, _attention)
    _trace_grouped_products()
    model = architectures.build(values).to(getattr(torch, dtype))
    for layer in linear_layers(model):
        _chunks_as_rows(layer)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = ATTENTION
    return model


def deepstack(values: dict[str, Any]) -> list[int]:
    """Return the vision layers whose features go to the decoder in addition to the last one's."""
    found = values["vision_config"].get("deepstack_visual_indexes", [])
    return found if FAMILIES[values["model_type"]].has_deepstack else []


def _policy(model: Any, config: PolicyConfig) -> Policy:
    """Return the policy with zero gradients; 4-bit weights are traced as they are before quantization."""
    if config.lora is not None:
        if config.lora.load_in_4bit:
            check_quantizable(model)
        config = config.model_copy(update={"lora": config.lora.model_copy(update={"load_in_4bit": False})})
    policy = Policy(model, config)
    for tensor in policy.parameters().values():
        tensor.grad = torch.zeros_like(tensor)
    return policy


def trace_language_model(
    values: dict[str, Any],
    dtype: str,
    config: PolicyConfig,
    shape: MicrobatchShape,
    prefill: tuple[int, int],
    *,
    train_tower: bool,
) -> MetaTrace:
    """Trace the language model.

    Args:
        prefill: Tokens of one prefill pass, and keys that they attend to.
        train_tower: Whether gradients propagate to image features.
    """
    values = {**values, "vision_config": {**values["vision_config"], "depth": 1}}
    with torch.device("meta"):
        model = _built(values, dtype)
        model.model.visual = nn.Identity()
        layers = model.model.language_model.layers
        parameters = sum(parameter.numel() for parameter in model.parameters())
        experts = sum(value.numel() for name, value in layers.named_parameters() if ".experts." in name)
        packable = [part.weight.numel() for part in layers.modules() if isinstance(part, nn.Linear)]
        policy = _policy(model, config.model_copy(update={"train_vision": True}))
        trained = policy.parameters().values()
        width, kept = values["text_config"]["hidden_size"], torch.float32 if train_tower else getattr(torch, dtype)
        leaves = tuple(
            torch.zeros(shape.images, width, dtype=kept, requires_grad=train_tower)
            for _ in range(1 + len(deepstack(values)))
        )
        batch = _batch(shape)
        counted = AllocationMeter(*model.parameters(), *model.buffers(), *trained, *leaves)
        with counted:
            hidden_WH = policy.hidden(batch, lambda _, index_N: tuple(leaf.index_select(0, index_N) for leaf in leaves))
            saved = counted.live
            scores = policy.scores(batch, hidden_WH)
            logits = counted.live - saved
            scores.logprobs_W.sum().backward()
            peak = counted.peak
        del hidden_WH, scores
        return MetaTrace(
            parameters=parameters,
            trained=sum(tensor.numel() for tensor in trained),
            weights=sum(parameter.nbytes for parameter in model.parameters()),
            experts=experts,
            packable=sum(packable),
            largest_packable=max(packable),
            saved=saved,
            logits=logits,
            passing=peak - saved - logits,
            prefill=_prefill(model, *prefill),
        )


def _batch(shape: MicrobatchShape) -> TrainBatch:
    numbers_N, numbers_W = torch.zeros(shape.images, dtype=torch.int64), torch.ones(shape.sampled, dtype=torch.int64)
    ids_1T = torch.zeros(1, shape.tokens, dtype=torch.int64)
    positions_31T = torch.zeros(3, 1, shape.tokens, dtype=torch.int64)
    inputs = ModelInputs(ids_1T, positions_31T, (shape.tokens,), (), numbers_N, numbers_N)
    return TrainBatch(
        inputs,
        rows=(0,),
        positions_W=numbers_W,
        rows_W=numbers_W,
        behavior_logprobs_W=torch.zeros(shape.sampled),
        versions_W=numbers_W,
        after_image_W=numbers_W.bool(),
        same_version_W=numbers_W.bool(),
        temperature=1.0,
    )


def _prefill(model: Any, tokens: int, keys: int) -> float:
    """Trace a prefill after cached keys: every query has a mask over all keys."""
    text = model.config.text_config
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    stored = torch.zeros(1, text.num_key_value_heads, keys, size, dtype=model.lm_head.weight.dtype)
    shapes = architectures.state_shapes(model.config.to_dict())
    states = shapes.blank(1, stored.dtype, "meta")
    view = StateView(shapes, states, [tokens])
    cache = SimpleNamespace(update=lambda key, value, layer: (stored, stored), states=view)
    counted = AllocationMeter(*model.parameters(), *model.buffers(), stored, *states)
    with torch.no_grad(), counted:
        ids_BT, positions_3BT = torch.zeros(1, tokens, dtype=torch.int64), torch.zeros(3, 1, tokens, dtype=torch.int64)
        mask = torch.ones(1, 1, tokens, keys, dtype=torch.bool)
        forward_decoder(model, ids_BT, positions_3BT, mask=mask, cache=cache)
    return counted.peak


@dataclass(frozen=True)
class VisionMetaTrace:
    """Trace of the vision tower, in bytes unless stated otherwise."""

    parameters: int
    """Number of weights without LoRA."""
    trained: int
    """Number of trained weights, including LoRA."""
    weights: int
    saved: float
    """Activations saved for the backward pass of one image; 0 if the tower is frozen."""
    passing: float
    """Additional bytes at the peak of the backward pass."""
    inference: float
    """Peak of a pass without gradients."""


def trace_vision_tower(values: dict[str, Any], dtype: str, patches_S: int, config: PolicyConfig) -> VisionMetaTrace:
    """Trace the vision tower on one image of `patches_S` patches."""
    kinds = FAMILIES[values["model_type"]].layer_types(values["text_config"])
    kinds = list(dict.fromkeys(kinds))  # LoRA names projections of each kind
    text = {**values["text_config"], "num_hidden_layers": len(kinds), "layer_types": kinds}
    with torch.device("meta"):
        model = _built({**values, "text_config": text}, dtype)
        model.model.language_model.requires_grad_(False)
        model.lm_head.requires_grad_(False)
        visual = model.model.visual
        parameters = sum(part.numel() for part in visual.parameters())
        weights = sum(part.nbytes for part in visual.parameters())
        policy = _policy(model, config)
        trained = [tensor for name, tensor in policy.parameters().items() if ".visual." in name]
        known = [*visual.parameters(), *visual.buffers(), *trained]
        vision, count = values["vision_config"], sum(part.numel() for part in trained)
        saved, passing = _trace_image(visual, vision, patches_S, known, backward=True) if trained else (0, 0)
        _, inference = _trace_image(visual, vision, patches_S, known, backward=False)
        return VisionMetaTrace(parameters, count, weights, saved, passing, inference)


def _trace_image(
    visual: Any, vision: dict[str, Any], patches_S: int, known: list[Tensor], *, backward: bool
) -> tuple[float, float]:
    """Return (saved, additional peak) bytes of one image through patch embedding, blocks and mergers."""
    ends = np.array([0, patches_S])
    head_size = vision["hidden_size"] // vision["num_heads"]
    merging = dict(
        zip(vision.get("deepstack_visual_indexes", ()), getattr(visual, "deepstack_merger_list", ()), strict=False)
    )
    pixels = torch.zeros(patches_S, 3 * vision.get("temporal_patch_size", 2) * vision["patch_size"] ** 2)
    angles = torch.zeros(patches_S, head_size), torch.zeros(patches_S, head_size)
    counted = AllocationMeter(*known, pixels, *angles)
    with torch.set_grad_enabled(backward), counted:
        hidden_SH, merged = visual.patch_embed(pixels), []
        for index, block in enumerate(visual.blocks):
            hidden_SH = block(hidden_SH, cu_seqlens=ends, position_embeddings=angles)
            if index in merging:
                merged.append(merging[index](hidden_SH))
        merged.append(visual.merger(hidden_SH))
        saved = counted.live if backward else 0
        if backward:
            trained_parts = [part for part in merged if part.requires_grad]
            torch.autograd.backward(trained_parts, [torch.zeros_like(part) for part in trained_parts])
        return saved, counted.peak - saved
