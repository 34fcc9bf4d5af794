"""A Qwen3-VL processor for images alone, since videos need torchvision. Used by the programs of this folder."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class ImageOnlyProcessor(Qwen3VLProcessor):
    """Qwen3-VL's own processor without its video processor."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def load_processor(checkpoint: str, chat_template: str | None = None) -> ImageOnlyProcessor:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    images = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    return ImageOnlyProcessor(images, tokenizer, None, chat_template=tokenizer.chat_template)
