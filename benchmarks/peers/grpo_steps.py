"""GRPO steps of Deskhand and of TRL, which `benchmarks.trl` compares: `-m benchmarks.peers.grpo_steps SIDE JSON`.

Both sides load the bundled policy with `deskhand.models.load`, freeze its vision tower, sample completions for prompts
with one screenshot each, give them equal random rewards and make one update per step. The last line of the output is
JSON. TRL needs the packages of `scripts/environment trl` on PYTHONPATH, behind Deskhand's own.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.synthetic_screens import QUESTION, screenshot
from benchmarks.thresholds import ROOT
from deskhand.config.load import load_config
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.engines.hf import HfEngine
from deskhand.models.load import LoadedModel, load
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.recorder import ChatRequest, Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import attach_engine, push_weights
from deskhand.types import Sampling

LEARNING_RATE, BETAS, MAX_GRAD_NORM = 1e-6, (0.9, 0.95), 1.0


@dataclass(frozen=True)
class Work:
    """Amount of work of a step, and the number of steps."""

    prompts: int
    completions: int
    tokens: int
    """Maximum length of a completion."""
    width: int
    height: int
    steps: int

    def screens(self, step: int) -> list[bytes]:
        """Return the PNG of each prompt; no step shows one again."""
        return [
            screenshot(np.random.default_rng([step, each]), self.width, self.height) for each in range(self.prompts)
        ]

    def rewards(self, step: int) -> np.ndarray:
        """Return float64[prompts, completions]."""
        return np.random.default_rng(step).normal(size=(self.prompts, self.completions))


@dataclass
class Measured:
    """CPU seconds and tokens by step; peak memory of the process in MiB."""

    generation_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)
    """All of the step but generation: preparation, gradient and optimizer."""
    prompt_tokens: list[int] = field(default_factory=list)
    sampled_tokens: list[int] = field(default_factory=list)
    peak_mib: float = 0.0


@contextmanager
def measured(spent: list[float]) -> Iterator[None]:
    """Append the CPU seconds of the block."""
    before = time.process_time()
    yield
    spent.append(time.process_time() - before)


def policy_settings() -> PolicyConfig:
    """Return those of the demo."""
    return load_config(ROOT / "configs" / "tiny_cpu.yaml").policy


async def run_deskhand(work: Work, loaded: LoadedModel) -> Measured:
    """The engine samples through a recorder, and the trainer updates the weights that they share."""
    found = Measured()
    renderer, images = ChatRenderer(loaded.tokenizer), ImageCache(loaded.image_processor)
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=work.prompts * work.completions), threads=1)
    recorder = Recorder(renderer, engine, images)
    policy = Policy(loaded.model, policy_settings(), renderer.banned_ids)
    settings = TrainerConfig(
        learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], max_grad_norm=MAX_GRAD_NORM, torch_threads=1
    )
    trainer = Trainer(policy, settings)
    attach_engine(trainer, engine)

    async def sample(name: str, screen: bytes, seed: int) -> CallGraph:
        session = recorder.session(recorder.open_session(name))
        assert session is not None
        shown = await recorder.in_thread(images.add, screen)
        asked = message("user", [ImagePart(shown.sha256), QUESTION])
        await recorder.complete(session, ChatRequest((asked,), Sampling(work.tokens, seed=seed)))
        return recorder.close_session(name)

    for step in range(work.steps):
        screens = work.screens(step)
        with measured(found.generation_s):
            graphs = await asyncio.gather(
                *(
                    sample(f"{step}-{prompt}-{number}", screens[prompt], 10**6 * step + 10**3 * prompt + number)
                    for prompt in range(work.prompts)
                    for number in range(work.completions)
                )
            )
        with measured(found.update_s):
            advantages = np.concatenate([trainer.algorithm(rewards) for rewards in work.rewards(step)])
            samples = [
                TrainingSample(sequence, float(advantage), f"{step}-{number}")
                for number, (graph, advantage) in enumerate(zip(graphs, advantages, strict=True))
                for sequence in graph.sequences()
            ]
            done = await asyncio.to_thread(trainer.step, samples, images)
            await push_weights(policy, engine, trainer.version)
        if done.num_updates != 1 or done.rejected:
            raise RuntimeError(f"made {done.num_updates} updates, rejected {done.rejected}")
        found.prompt_tokens.append(sum(len(one.sequence.token_ids) - sum(one.sequence.loss_mask) for one in samples))
        found.sampled_tokens.append(sum(sum(one.sequence.loss_mask) for one in samples))
    recorder.close()
    await engine.close()
    return found


def run_trl(work: Work, loaded: LoadedModel) -> Measured:
    """`GRPOTrainer` samples with transformers' `generate` and updates."""
    from datasets import Dataset  # pyright: ignore
    from transformers import ProcessorMixin, Qwen3VLProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore

    found = Measured()

    class Processor(Qwen3VLProcessor):
        """Transformers' own without the part for videos, which needs torchvision."""

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: Any = None) -> None:
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(
                [self.image_token, self.video_token]
            )

    class Timed(GRPOTrainer):
        """Measures generation."""

        def _generate(self, *arguments: Any, **options: Any) -> Any:
            with measured(found.generation_s):
                result = super()._generate(*arguments, **options)
            found.prompt_tokens.append(sum(map(len, result[0])))
            found.sampled_tokens.append(sum(map(len, result[1])))
            return result

    class Steps(TrainerCallback):
        """Measures whole steps; `on_step_begin` follows the reading of the step's prompts."""

        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.update_s.append(time.process_time() - self.began - found.generation_s[-1])

    def reward(prompts: list[Any], step: list[int], **_: Any) -> list[float]:
        if len(prompts) != work.prompts * work.completions or len({*step}) != 1:
            raise RuntimeError(f"a step has {len(prompts)} rows of the steps {sorted({*step})}")
        return work.rewards(step[0]).reshape(-1).tolist()

    rows = [
        {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}],
            "images": [Image.open(io.BytesIO(screen))],
            "step": step,
        }
        for step in range(work.steps)
        for screen in work.screens(step)
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=MAX_GRAD_NORM,
            per_device_train_batch_size=work.prompts * work.completions,
            num_generations=work.completions,
            max_completion_length=work.tokens,
            max_steps=work.steps,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            loss_type="grpo",
            temperature=1.0,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        processor = Processor(loaded.image_processor, loaded.tokenizer, chat_template=loaded.tokenizer.chat_template)
        callbacks = [Steps()]
        dataset = Dataset.from_list(rows)
        Timed(loaded.model, reward, settings, dataset, processing_class=processor, callbacks=callbacks).train()
    return found


SIDES: dict[str, Callable[[Work, LoadedModel], Measured]] = {
    "deskhand": lambda work, loaded: asyncio.run(run_deskhand(work, loaded)),
    "trl": run_trl,
}


def main(side: str, settings: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded = load("tiny")
    loaded.model.model.visual.requires_grad_(False)
    found = SIDES[side](Work(**json.loads(settings)), loaded)
    found.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
