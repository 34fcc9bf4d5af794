"""Model families: what differs between the architectures that Deskhand trains. Start with `family_of`.

Used by `models.load`, `models.architectures`, the estimates, the vLLM engine and `recipes.model_defaults`. Common to
all: tokens `<|image_pad|>` as placeholders, rotary positions in three dimensions (`models.forward`), and the Pillow
image processor of Qwen2-VL. The chat template comes with the checkpoint. When a checkpoint is loaded, sizes, the
placeholder, positions (`forward.check_positions`) and states (`linear_attention.check_states`) are compared with
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.errors import ConfigError

FULL, LINEAR = "full_attention", "linear_attention"
"""Kinds of decoder layers, as in `layer_types` of config.json."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family, named by `model_type` of config.json."""

    classes: str
    """How the names of transformers' classes begin."""
    image_area: tuple[int, int]
    """Minimum and maximum pixels of a prepared image in the published preprocessor_config.json."""
    action_format: str
    """Format that the published models write."""
    has_deepstack: bool = False
    """Whether features of several vision layers are added to the first decoder layers."""
    linear_interval: int = 0
    """Without `layer_types`, all layers but every so many-th have linear attention; 0 if none has."""
    serves_lora: bool = True
    """Whether vLLM receives LoRA alone; otherwise whole weights."""
    serves_vision_lora: bool = False
    """Whether that is so for LoRA on the vision tower too: where vLLM's results are tested against the trainer's."""
    trains_with_areal: bool = True
    """Whether packed rows are exact in AReaL's workers, as tests show."""
    transposed: tuple[str, ...] = ()
    """Ends of the names of weights whose last two dimensions checkpoints store in the other order."""

    @property
    def architecture(self) -> str:
        """Name of the model's class in transformers and vLLM."""
        return f"{self.classes}ForConditionalGeneration"

    @property
    def has_experts(self) -> bool:
        """Whether each token passes through a few of many MLPs."""
        return self.classes.endswith("Moe")

    def model_class(self) -> Any:
        import transformers

        return getattr(transformers, self.architecture)

    def config_class(self) -> Any:
        import transformers

        return getattr(transformers, f"{self.classes}Config")

    def stored(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors of the model in the layout of its checkpoints, which servers read, or the other way around."""
        return {
            name: tensor.transpose(-2, -1).contiguous() if name.endswith(self.transposed) else tensor
            for name, tensor in weights.items()
        }

    def layer_types(self, text: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the kind of each decoder layer; `text` is `text_config` of config.json."""
        if stated := text.get("layer_types"):
            return tuple(stated)
        interval = text.get("full_attention_interval") or self.linear_interval
        numbers = range(1, text["num_hidden_layers"] + 1)
        return tuple(LINEAR if self.linear_interval and number % interval else FULL for number in numbers)


FAMILIES = {
    "qwen3_vl": ModelFamily("Qwen3VL", (65536, 16_777_216), "qwen3_vl", has_deepstack=True, serves_vision_lora=True),
    "qwen3_vl_moe": ModelFamily(
        "Qwen3VLMoe",
        (65536, 16_777_216),
        "qwen3_vl",
        has_deepstack=True,
        serves_lora=False,
        trains_with_areal=False,
        transposed=(".experts.gate_up_proj", ".experts.down_proj"),
    ),
    "qwen2_5_vl": ModelFamily("Qwen2_5_VL", (3136, 12_845_056), "qwen25_vl"),
    "qwen3_5": ModelFamily(
        "Qwen3_5", (65536, 16_777_216), "qwen35", linear_interval=4, serves_lora=False, trains_with_areal=False
    ),
    "qwen3_5_moe": ModelFamily(
        "Qwen3_5Moe", (65536, 16_777_216), "qwen35", linear_interval=4, serves_lora=False, trains_with_areal=False
    ),
}
"""Families by `model_type`."""


def family_of(config: Mapping[str, Any], file: object = "config.json") -> str:
    """Return the name of the family of a config.json. Raises `ConfigError` if it is not supported."""
    found = config.get("model_type")
    if found in FAMILIES:
        return str(found)
    raise ConfigError(f"{file}: model_type must be {' or '.join(FAMILIES)}, got {found!r}")
