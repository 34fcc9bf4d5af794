"""Teacher of on-policy distillation (`trainer.distillation`). Used by `recipes.assemble`; start with `load_teacher`.

A checkpoint is loaded in addition to the policy, and scores with the trainer's own code: temperature and banned ids are
the student's. A served teacher scores at temperature 1 over all ids. Both see the recorded ids and pixels, so the
tokenizer and the image processor must be the student's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deskhand.config.trainer import DistillationConfig, PolicyConfig
from deskhand.engines.http_engine.endpoint import HttpEndpoint, check_url
from deskhand.engines.http_engine.engine import ServerTimeouts
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.vllm.prompt_scorer import PromptScorer
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel, load
from deskhand.recorder.graph import Sequence as Row
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Teacher
from deskhand.types import PreparedImage, Prompt

KEY = "trainer.distillation.teacher"
PIXELS = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std", "rescale_factor")
"""Settings of an image processor that change the values of an image of a given size."""
PROBE_IDS = 512
"""Ordinary ids of the vocabulary that a served tokenizer is compared on."""


def load_teacher(
    config: DistillationConfig,
    student: LoadedModel,
    banned_ids: Sequence[int],
    policy: PolicyConfig,
    *,
    dtype: str,
    device: str,
    max_tokens: int,
    environment: Mapping[str, str],
    patience: ServerTimeouts | None = None,
) -> Teacher:
    """Return the teacher of a student. Blocks until a checkpoint is loaded, or a server has answered.

    Args:
        banned_ids: Ids that the student never samples.
        policy: Limits of micro-batches.
        max_tokens: Maximum tokens of a sequence.

    Raises `ConfigError` if the teacher does not exist or has another tokenizer or image processor.
    """
    if config.is_served:
        served = ServedTeacher(config, student, environment, patience)
        asyncio.run(served.check(max_tokens))
        return served
    teacher = load(config.teacher, dtype=dtype, device=device)
    check_same_processing(config.teacher, student, teacher.tokenizer, teacher.image_processor)
    teacher.model.requires_grad_(False)
    return Policy(teacher.model, policy.model_copy(update={"lora": None}), banned_ids).logprobs


def check_same_processing(source: str, student: LoadedModel, tokenizer: Any, image_processor: Any) -> None:
    """Raise `ConfigError` if a teacher reads the student's ids or pixels as others."""
    if tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise ConfigError(
            f"{KEY}: the tokenizer of {source} is not that of {student.source}; choose a teacher with the same "
            "tokenizer"
        )
    for name in PIXELS:
        theirs, ours = (getattr(one, name) for one in (image_processor, student.image_processor))
        if theirs != ours:
            raise ConfigError(
                f"{KEY}: the image processor of {source} has {name} {theirs}, that of {student.source} {ours}; choose "
                "a teacher with the same image processor"
            )


@dataclass
class ServedTeacher:
    """A teacher on a vLLM server. Each call opens its own connections, since the trainer's thread has no event loop."""

    config: DistillationConfig
    student: LoadedModel
    environment: Mapping[str, str]
    patience: ServerTimeouts | None = None

    def __post_init__(self) -> None:
        self._url = check_url(self.config.teacher, KEY)
        self._images = ImageEncoder(self.student.image_processor)
        variable = self.config.api_key_env
        if variable is not None and not self.environment.get(variable):
            raise ConfigError(
                f"trainer.distillation.api_key_env: environment variable {variable} is not set; set it to the API key"
            )
        self._api_key = self.environment[variable] if variable is not None else None

    def __call__(self, rows: Sequence[Row], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        return asyncio.run(self._score(rows, images))

    async def check(self, max_tokens: int) -> None:
        """Check the server, whose sequences have up to `max_tokens` tokens."""
        endpoint = HttpEndpoint(self._url, api_key=self._api_key)
        try:
            scorer = PromptScorer(endpoint, self._images, KEY, self.patience)
            await scorer.check(probe_texts(self.student.tokenizer), max_tokens)
        finally:
            await endpoint.close()

    async def _score(self, rows: Sequence[Row], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        endpoint = HttpEndpoint(self._url, api_key=self._api_key)
        try:
            scorer = PromptScorer(endpoint, self._images, KEY, self.patience)
            prompts = [Prompt(row.token_ids, row.spans, images) for row in rows]
            found = await asyncio.gather(*map(scorer.score, prompts))
        finally:
            await endpoint.close()
        return [scores[np.asarray(row.loss_mask)] for row, scores in zip(rows, found, strict=True)]


def probe_texts(tokenizer: Any) -> Iterable[tuple[str, list[int]]]:
    """Yield texts with their ids: ordinary entries from the whole vocabulary, and all added ones, which mark turns and
    images."""
    added = sorted(tokenizer.get_added_vocab().values())
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(added))
    chosen = ordinary[:: max(1, len(ordinary) // PROBE_IDS)]
    for ids in (chosen, added):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        yield text, list(tokenizer.encode(text, add_special_tokens=False))
