"""The recorder's invariants as run-time checks. Invariant: what passes here is what is trained.

Each check raises `RecordError` with a stable cause. They are cheap: a few passes over the ids at C speed.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from deskhand.engines.base import Completion, Prompt, Sampling
from deskhand.errors import RecordError


def check_prompt(prompt: Prompt, image_id: int) -> None:
    """Placeholders, spans and images agree: as many placeholders as the recorded images take, each span whole and in order."""
    images = prompt.images or {}
    at = 0
    for span in prompt.spans:
        image = images.get(span.sha256)
        if image is None or image.sha256 != span.sha256:
            raise RecordError(
                "image_hash", f"the span at {span.start} names image {span.sha256[:12]}, which the prompt does not carry"
            )
        rows = math.prod(image.grid_thw)
        if len(image.pixel_values) != rows or image.tokens != span.count or rows % image.tokens:
            raise RecordError(
                "placeholders",
                f"image {span.sha256[:12]} has {len(image.pixel_values)} patches and {image.tokens} tokens, its span {span.count}",
            )
        if span.start < at or prompt.token_ids[span.start : span.start + span.count] != (image_id,) * span.count:
            raise RecordError(
                "placeholders", f"the span at {span.start} is not {span.count} image placeholders after position {at}"
            )
        at = span.start + span.count
    expected = sum(images[span.sha256].tokens for span in prompt.spans)
    found = prompt.token_ids.count(image_id)
    if found != expected:
        raise RecordError(
            "placeholders", f"{found} image placeholders in the prompt, {expected} expected from {len(prompt.spans)} images"
        )


def check_completion(prompt: Prompt, sampling: Sampling, done: Completion, banned_ids: Collection[int]) -> None:
    """The engine served the prompt as it was sent and sampled within the rules."""
    if done.served_ids != prompt.token_ids:
        raise RecordError("served_ids", _first_difference(prompt.token_ids, done.served_ids))
    if not len(done.token_ids) == len(done.logprobs) == len(done.versions):
        raise RecordError(
            "lengths", f"{len(done.token_ids)} ids, {len(done.logprobs)} log-probs and {len(done.versions)} versions were returned"
        )
    if not 1 <= len(done.token_ids) <= sampling.max_tokens:
        raise RecordError("lengths", f"{len(done.token_ids)} tokens were sampled; 1 to {sampling.max_tokens} were asked for")
    if not set(banned_ids).isdisjoint(done.token_ids):
        raise RecordError("banned_id", f"banned ids were sampled: {sorted(set(banned_ids) & set(done.token_ids))}")
    if not all(math.isfinite(value) and value <= 1e-6 for value in done.logprobs):
        raise RecordError("logprobs", "a log-prob is not finite or above 0")
    if min(done.versions) < 0:
        raise RecordError("versions", f"weights version {min(done.versions)} is negative")
    stopped = done.token_ids[-1] in sampling.stop_ids
    if stopped != (done.finish_reason == "stop") or not set(sampling.stop_ids).isdisjoint(done.token_ids[:-1]):
        raise RecordError(
            "finish_reason", f"the engine says {done.finish_reason}, the ids say otherwise (last id {done.token_ids[-1]})"
        )


def _first_difference(sent: tuple[int, ...], served: tuple[int, ...]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(sent, served, strict=False)) if a != b), min(len(sent), len(served)))
    return f"{len(sent)} ids were sent and {len(served)} served; they differ from position {at}"
