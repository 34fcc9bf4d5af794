"""Runs with TRL's packages: reads exported recordings with `datasets` and TRL, and computes plain gradients from them.

`read_recordings.py KIND FOLDER CHECKPOINT OUT`: writes safetensors with the gradients and prints facts as JSON. Nothing
of Deskhand is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_processor import load_processor
from transformers import Qwen3VLForConditionalGeneration


def main(kind: str, folder: str, checkpoint: str, out: str) -> None:
    datasets: Any = importlib.import_module("datasets")
    rows = datasets.load_dataset("imagefolder", data_dir=folder, split="train")
    facts = json.loads((Path(folder) / "deskhand.json").read_text())
    model = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    reference = {"datasets_rl": policy_loss, "trl_rl": policy_loss, "datasets_sft": cross_entropy, "trl_sft": trl_loss}
    loss = reference[kind](model, rows, facts, checkpoint)
    loss.backward()
    save_file({name: p.grad.contiguous() for name, p in model.named_parameters() if p.grad is not None}, out)
    print(json.dumps({"rows": len(rows), "columns": sorted(rows.column_names), "loss": float(loss)}))


def logits_of(model: Any, ids: list[int], images: list[Any], facts: Any, checkpoint: str) -> torch.Tensor:
    """Logits [T, V] of one row, with its images preprocessed by the checkpoint's own processor."""
    ids_1T = torch.tensor([ids])
    inputs: dict[str, Any] = {"input_ids": ids_1T, "attention_mask": torch.ones_like(ids_1T)}
    if images:
        processor = load_processor(checkpoint).image_processor
        inputs |= processor(images=images, return_tensors="pt")
        inputs["mm_token_type_ids"] = (ids_1T == facts["image_token_id"]).long()
    return model(**inputs).logits[0]


def policy_loss(model: Any, rows: Any, facts: Any, checkpoint: str) -> torch.Tensor:
    """PPO's clipped surrogate: the mean over episodes of the mean over their sampled tokens."""
    by_episode: dict[str, list[torch.Tensor]] = {}
    for row in rows:
        if facts["format"] == "trl":
            ids = row["prompt_ids"] + row["completion_ids"]
            mask = [0] * len(row["prompt_ids"]) + row["env_mask"]
            old = [0.0] * len(row["prompt_ids"]) + row["logprobs"]
        else:
            ids, mask, old = row["input_ids"], row["loss_mask"], row["logprobs"]
        logits = logits_of(model, ids, row["images"], facts, checkpoint) / row["temperature"]
        logits[:, facts["banned_ids"]] = -torch.inf
        new = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        ratio = torch.exp(new - torch.tensor(old[1:]))
        surrogate = torch.minimum(ratio * row["advantage"], ratio.clamp(0.8, 1.2) * row["advantage"])
        by_episode.setdefault(row["episode_id"], []).append(-surrogate[torch.tensor(mask[1:], dtype=torch.bool)])
    means = [torch.cat(parts).mean() for parts in by_episode.values()]
    return torch.stack(means).mean()


def cross_entropy(model: Any, rows: Any, facts: Any, checkpoint: str) -> torch.Tensor:
    losses = []
    for row in rows:
        logits = logits_of(model, row["input_ids"], row["images"], facts, checkpoint)
        logits[:, facts["banned_ids"]] = -torch.inf
        targets = torch.tensor(row["labels"][1:])
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="none")[targets != -100])
    return torch.cat(losses).mean()


def trl_loss(model: Any, rows: Any, facts: Any, checkpoint: str) -> torch.Tensor:
    """The mean over all target tokens of the batch that TRL's own collator makes for SFTTrainer."""
    trl: Any = importlib.import_module("trl.trainer.sft_trainer")
    processor = load_processor(checkpoint)
    assert facts["image_token_id"] == processor.image_token_id
    collator = trl.DataCollatorForVisionLanguageModeling(processor, max_length=None, completion_only_loss=True)
    batch = collator([{name: row[name] for name in ("prompt", "completion", "images")} for row in rows])
    labels = batch.pop("labels")
    logits = model(**batch).logits
    logits[..., facts["banned_ids"]] = -torch.inf
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


if __name__ == "__main__":
    main(*sys.argv[1:])
