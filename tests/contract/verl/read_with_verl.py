"""Runs with verl's packages: reads exported recordings with verl's own datasets and prints the token ids as JSON.

`read_with_verl.py FORM FILE CHECKPOINT`. Nothing of Deskhand is imported. Two things are replaced: verl's `__init__`,
which imports Ray, by an empty package of the same folder; and qwen-vl-utils, whose torchvision needs a torch for CUDA,
by functions that open the images.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

from PIL import Image
from transformers import AutoTokenizer, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class ImageOnlyProcessor(Qwen3VLProcessor):
    """Qwen3-VL's own processor without its video processor."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def open_image(part: dict[str, Any], **_: Any) -> Image.Image:
    return Image.open(part["image"]).convert("RGB")


def open_images(messages: list[dict[str, Any]], **_: Any) -> tuple[list[Image.Image], None]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [open_image(part) for part in parts if part["type"] == "image"], None


def replace_what_needs_a_gpu() -> None:
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    package, images = ModuleType("verl"), ModuleType("qwen_vl_utils")
    package.__path__ = list(spec.submodule_search_locations or [])
    vars(images).update(fetch_image=open_image, process_vision_info=open_images)
    sys.modules |= {"verl": package, "qwen_vl_utils": images}


def main(form: str, file: str, checkpoint: str) -> None:
    replace_what_needs_a_gpu()
    omegaconf: Any = importlib.import_module("omegaconf")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    images = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    processor = ImageOnlyProcessor(images, tokenizer, None, chat_template=tokenizer.chat_template)
    lengths = {"max_prompt_length": 8192, "max_length": 8192, "pad_mode": "no_padding"}
    config = omegaconf.OmegaConf.create({**lengths, "filter_overlong_prompts_workers": None})
    read = prompts if form == "rl" else conversations
    print(json.dumps(read(file, tokenizer, config, processor)))


def prompts(file: str, tokenizer: Any, config: Any, processor: Any) -> list[dict[str, Any]]:
    """The prompt ids of each row of `RLHFDataset`, as verl's agent loop computes them, and the recorded columns."""
    verl: Any = importlib.import_module("verl.utils.dataset.rl_dataset")
    dataset = verl.RLHFDataset(file, tokenizer, config, processor)
    found = []
    for row in (dataset[index] for index in range(len(dataset))):
        messages = row["raw_prompt"]
        images, _, _ = dataset._process_multi_modal_info(messages, dataset.image_patch_size, config)
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = verl.build_multimodal_processor_inputs(processor, text=[text], images=images)
        columns = {name: row[name] for name in ("prompts", "responses", "data_source", "reward_model", "index", "uid")}
        found.append({"ids": inputs["input_ids"][0].tolist(), "sizes": [image.size for image in images], **columns})
    return found


def conversations(file: str, tokenizer: Any, config: Any, processor: Any) -> list[dict[str, Any]]:
    """The ids and the targets of each row of `MultiTurnSFTDataset`."""
    verl: Any = importlib.import_module("verl.utils.dataset.multiturn_sft_dataset")
    datasets: Any = importlib.import_module("datasets")
    datasets.Dataset.from_json(file).to_parquet(f"{file}.parquet")
    dataset = verl.MultiTurnSFTDataset(f"{file}.parquet", tokenizer, config, processor)
    rows = [dataset[index] for index in range(len(dataset))]
    return [{"ids": row["input_ids"].tolist(), "mask": row["loss_mask"].tolist()} for row in rows]


if __name__ == "__main__":
    main(*sys.argv[1:])
