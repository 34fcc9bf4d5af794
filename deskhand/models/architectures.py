"""Architectures of published checkpoints, so that estimates and benchmarks need no download.

Used by `recipes.plan` and benchmarks: `values_of("Qwen/Qwen3-VL-4B-Instruct")` returns the parts of its
config.json that determine tensor shapes. `published.json` holds them, from the hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deskhand.errors import ConfigError
from deskhand.models.families import FAMILIES, FULL, family_of
from deskhand.models.hub import CONFIG_FILES
from deskhand.models.load import adapter_base, checkpoint_folder, read_json

_PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
QWEN3_VL_4B: dict[str, Any] = _PUBLISHED["Qwen/Qwen3-VL-4B"]
QWEN25_VL_3B: dict[str, Any] = _PUBLISHED["Qwen/Qwen2.5-VL-3B"]
QWEN35_4B: dict[str, Any] = _PUBLISHED["Qwen/Qwen3.5-4B"]
_QWEN3_VL_30B: dict[str, Any] = _PUBLISHED["Qwen/Qwen3-VL-30B-A3B"]
PUBLISHED = {
    "Qwen/Qwen3-VL-4B-Instruct": QWEN3_VL_4B,
    "Qwen/Qwen3-VL-4B-Thinking": QWEN3_VL_4B,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": _QWEN3_VL_30B,
    "Qwen/Qwen3-VL-30B-A3B-Thinking": _QWEN3_VL_30B,
    "Qwen/Qwen2.5-VL-3B-Instruct": QWEN25_VL_3B,
    "Qwen/Qwen3.5-4B": QWEN35_4B,
}

if TYPE_CHECKING:
    from deskhand.models.linear_attention import StateShapes

_DEPTHS = ("num_hidden_layers", "depth")
_SIZES = {
    "text_config": (
        "vocab_size", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    ),
    "vision_config": ("depth", "hidden_size", "num_heads", "patch_size", "spatial_merge_size"),
}  # fmt: skip
_LINEAR_SIZES = (
    "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
_EXPERT_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


def values_of(source: str) -> dict[str, Any]:
    """Return config.json of "tiny", a checkpoint folder, a name in `PUBLISHED`, or another hub id, of which only
    the descriptions are downloaded.

    The text model's values are always under "text_config". Raises `ConfigError` if it is missing or unsupported.
    """
    if source in PUBLISHED and not Path(source).is_dir():
        return PUBLISHED[source]
    folder = checkpoint_folder(source, CONFIG_FILES)
    if base := adapter_base(folder):
        return values_of(base)
    file = folder / "config.json"
    values = read_json(file)
    values = values if "text_config" in values else {**values, "text_config": values}
    if isinstance(text := values["text_config"], dict) and "num_local_experts" in text:  # as transformers 5 writes it
        values = {**values, "text_config": {**text, "num_experts": text["num_local_experts"]}}
    _check(values, file)
    return values


def _check(values: dict[str, Any], file: Path) -> None:
    family = FAMILIES[family_of(values, file)]
    more = (*(_LINEAR_SIZES if family.linear_interval else ()), *(_EXPERT_SIZES if family.has_experts else ()))
    for section, names in (*_SIZES.items(), ("text_config", more)):
        for name in names:
            if name == "intermediate_size" and section == "text_config" and family.has_experts:
                continue
            found = values[section].get(name) if isinstance(values.get(section), dict) else None
            if not isinstance(found, int) or not 0 < found <= (1000 if name in _DEPTHS else 10**8):
                raise ConfigError(
                    f"{file}: {section}.{name} must be a valid size, got {found!r}; use a complete checkpoint"
                )


def preprocessing_of(source: str) -> tuple[int, int]:
    """Return (minimum, maximum) pixels of a prepared image. Raises `ConfigError` if they are missing."""
    if source in PUBLISHED and not Path(source).is_dir():
        return FAMILIES[PUBLISHED[source]["model_type"]].image_area
    folder = checkpoint_folder(source, CONFIG_FILES)
    if base := adapter_base(folder):
        return preprocessing_of(base)
    file = folder / "preprocessor_config.json"
    config = read_json(file)
    size = config.get("size") or {}
    try:
        return size.get("shortest_edge") or config["min_pixels"], size.get("longest_edge") or config["max_pixels"]
    except KeyError as error:
        raise ConfigError(f"{file}: {error} is missing; choose a complete checkpoint folder") from error


def build(values: dict[str, Any]) -> Any:
    """Build a model of that architecture on the current `torch.device` (meta: shapes without memory)."""
    from deskhand.models.fast_layers import embed_patches_by_product
    from deskhand.models.linear_attention import separate_rows

    family = FAMILIES[family_of(values)]
    config = family.config_class()(**{name: value for name, value in values.items() if name != "model_type"})
    config._attn_implementation = "sdpa"
    model = family.model_class()(config)
    embed_patches_by_product(model)
    separate_rows(model)
    return model.eval()


def count_parameters(values: dict[str, Any]) -> int:
    """Return the number of weights of a model of that architecture."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(values).parameters())


def attention_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the indices of the decoder layers with keys and values."""
    kinds = FAMILIES[family_of(values)].layer_types(values["text_config"])
    return tuple(index for index, kind in enumerate(kinds) if kind == FULL)


def expert_share(values: Mapping[str, Any]) -> float:
    """Return the share of the experts that compute a token; 1 without experts."""
    text = values["text_config"]
    return text["num_experts_per_tok"] / text["num_experts"] if FAMILIES[family_of(values)].has_experts else 1.0


def state_shapes(values: Mapping[str, Any]) -> StateShapes:
    """Return the sizes of the states of linear-attention layers."""
    from deskhand.models.linear_attention import StateShapes

    return StateShapes.of(FAMILIES[family_of(values)].layer_types(values["text_config"]), values["text_config"])
