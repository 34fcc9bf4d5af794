"""Runs with TRL's packages: one step of the real GRPOTrainer on real desktops, with a tiny random Qwen3-VL.

`train_with_trl.py CHECKPOINT OUT REWARD`: TRL calls the tools, reads the rewards and updates the weights. Random
weights write no tool calls, so what they would have sampled is replaced by a script. Prints facts as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny_processor import load_processor
from transformers import Qwen3VLForConditionalGeneration

from deskhand.integrations.trl.environment import OVER, TrlDesktop

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
CLICK, FINISH = CALL % ("click", '{"x": 500, "y": 500}'), CALL % ("finish", "{}")


def main(checkpoint: str, out: str, reward: str) -> None:
    trl: Any = importlib.import_module("trl")
    datasets: Any = importlib.import_module("datasets")

    class Scripted(trl.GRPOTrainer):
        """Every second episode finishes at once, the others click before."""

        def _generate_single_turn(self, prompt_ids: Any, images: Any, *_: Any, **__: Any) -> Any:
            replies = []
            for index, ids in enumerate(prompt_ids):
                seen = self._tokenizer.decode(ids)
                reply = "done" if OVER in seen else FINISH if "<tool_response>" in seen or index % 2 else CLICK
                turns.append((reply, sum(len(each) for each in images or [] if each)))
                replies.append(self._tokenizer(f"{reply}<|im_end|>", add_special_tokens=False)["input_ids"])
            return replies, None

    turns: list[tuple[str, int]] = []
    template = Path(trl.__file__).with_name("chat_templates") / "qwen3_vl.jinja"
    processor = load_processor(checkpoint, template.read_text())
    model = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    prompt = [{"role": "user", "content": "Do this: "}]
    trainer = Scripted(
        model,
        args=trl.GRPOConfig(
            out, per_device_train_batch_size=2, num_generations=2, max_steps=1, max_completion_length=2048,
            learning_rate=1e-3, use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=1,
            gradient_checkpointing=False,
        ),
        processing_class=processor,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt, "family": "terminal_run", "variant": 3}] * 2),
        environment_factory=partial(
            TrlDesktop, overrides=["suite.families=[terminal_run]", "desktop.prewarm=0", f"reward={reward}"]
        ),
    )  # fmt: skip
    trainer.train()
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    logged = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    print(json.dumps({"turns": turns, "changed": changed, "log": logged}))


if __name__ == "__main__":
    main(*sys.argv[1:])
