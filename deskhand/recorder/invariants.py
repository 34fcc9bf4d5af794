"""Run-time checks of prompts, completions and training sequences.

`recorder.recorder` checks every call, `trainer.trainer` and `integrations.areal` the sequences of every episode
(`check_rows`). Each check raises `RecordError` with a stable cause. They are cheap: a few passes over the ids at C
speed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, compress

import numpy as np

from deskhand.errors import RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.graph import Sequence as Row
from deskhand.types import Completion, Prompt, Sampling


def check_prompt(prompt: Prompt, image_id: int) -> None:
    """Check that placeholders, spans and images agree."""
    images = prompt.images or {}
    at = 0
    for span in prompt.spans:
        image = images.get(span.sha256)
        if image is None or image.sha256 != span.sha256:
            raise RecordError(
                "image_hash", f"the span at {span.start} refers to image {span.sha256[:12]}, which is not in the prompt"
            )
        rows = math.prod(image.grid_thw)
        if len(image.pixel_values) != rows or image.tokens != span.count or rows % image.tokens:
            raise RecordError(
                "placeholders",
                f"image {span.sha256[:12]} has {len(image.pixel_values)} patches and {image.tokens} tokens, "
                f"its span {span.count}",
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
            "placeholders", f"expected {expected} image placeholders for {len(prompt.spans)} images, got {found}"
        )


def check_history(prompt: Prompt, recorded: Iterable[Collection[tuple[int, ...]]]) -> None:
    """Check that replies in the history are in the prompt as sampled, in order. `recorded` holds, for each reply, the
    outputs recorded for it; one of them must be in the prompt."""
    ids, at = np.asarray(prompt.token_ids, dtype=np.int32).tobytes(), 0
    for number, outputs in enumerate(recorded):
        ends = [
            end for output in outputs if (end := _end_of(ids, np.asarray(output, dtype=np.int32).tobytes(), at)) >= 0
        ]
        if not ends:
            raise RecordError("retokenized", f"reply {number} in the history is not in the prompt as it was sampled")
        at = min(ends)


def _end_of(ids: bytes, output: bytes, at: int) -> int:
    """Return where `output` ends in `ids` from byte `at` on, at id boundaries; -1 if not found."""
    found = ids.find(output, at)
    while found >= 0 and found % 4:
        found = ids.find(output, found + 1)
    return found + len(output) if found >= 0 else -1


def check_turns(prompt: Prompt, end_id: int, turns: int) -> None:
    """Check that every turn before the reply is closed exactly once."""
    found = prompt.token_ids.count(end_id)
    if found != turns:
        raise RecordError("turn_ends", f"expected {turns} closed turns in the prompt, got {found}")


def check_completion(
    prompt: Prompt,
    sampling: Sampling,
    done: Completion,
    banned_ids: Collection[int],
    text_of: Callable[[tuple[int, ...]], str],
) -> None:
    """Check that the engine served the prompt as sent and sampled by the rules. `text_of` decodes sampled ids."""
    if done.served_ids != prompt.token_ids:
        raise RecordError("served_ids", _first_difference(prompt.token_ids, done.served_ids))
    if not len(done.token_ids) == len(done.logprobs) == len(done.versions):
        raise RecordError(
            "lengths",
            f"got {len(done.token_ids)} ids, {len(done.logprobs)} log-probs and {len(done.versions)} versions",
        )
    if not 1 <= len(done.token_ids) <= sampling.max_tokens:
        raise RecordError("lengths", f"expected 1 to {sampling.max_tokens} sampled tokens, got {len(done.token_ids)}")
    if not set(banned_ids).isdisjoint(done.token_ids):
        raise RecordError("banned_id", f"banned ids were sampled: {sorted(set(banned_ids) & set(done.token_ids))}")
    if not all(math.isfinite(value) and value <= 1e-6 for value in done.logprobs):
        raise RecordError("logprobs", "a log-prob is not finite or above 0")
    if min(done.versions) < 0:
        raise RecordError("versions", f"weights version {min(done.versions)} is negative")
    stopped = done.token_ids[-1] in sampling.stop_ids
    if sampling.stop_texts:
        before = text_of(done.token_ids[:-1])
        if any(stop in before for stop in sampling.stop_texts):
            raise RecordError("stop_text", "tokens were sampled after a stop text was complete")
        stopped = stopped or any(stop in text_of(done.token_ids) for stop in sampling.stop_texts)
    if stopped != (done.finish_reason == "stop") or not set(sampling.stop_ids).isdisjoint(done.token_ids[:-1]):
        raise RecordError(
            "finish_reason",
            f"finish reason {done.finish_reason} contradicts the sampled ids (last id {done.token_ids[-1]})",
        )
    _check_alternatives(sampling, done)
    if sampling.grammar is not None and sampling.grammar.kind == "json_schema" and done.finish_reason == "stop":
        try:
            json.loads(text_of(done.token_ids))
        except (ValueError, RecursionError):
            raise RecordError("grammar", "the reply is not JSON although a JSON Schema was requested") from None


def _check_alternatives(sampling: Sampling, done: Completion) -> None:
    """Check number and order of the alternatives, and that the sampled id has the same log-prob in them."""
    if not sampling.top_logprobs and not done.top_logprobs:
        return
    if len(done.top_logprobs) != len(done.token_ids):
        raise RecordError(
            "top_logprobs",
            f"got {len(done.top_logprobs)} lists of alternatives for {len(done.token_ids)} sampled tokens",
        )
    for token_id, logprob, listed in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        values = [value for _, value in listed]
        own = dict(listed).get(token_id, logprob)
        if len(listed) != sampling.top_logprobs or values != sorted(values, reverse=True) or abs(own - logprob) > 1e-3:
            raise RecordError("top_logprobs", f"the alternatives of a token contradict its log-prob {logprob:.4f}")


def _first_difference(sent: tuple[int, ...], served: tuple[int, ...]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(sent, served, strict=False)) if a != b), min(len(sent), len(served)))
    return f"{len(sent)} ids were sent and {len(served)} served; they differ from position {at}"


def check_rows(rows: Sequence[Row], graph: CallGraph | None = None) -> None:
    """Check that the sequences of an episode train each call once, and, with its graph, exactly what was sampled.

    Over all sequences every trained call of the graph occurs once; the trained tokens of a sequence, their log-probs
    and versions are those of its calls, and its ids are what the last of them was served and sampled.
    """
    counts = Counter(chain.from_iterable(row.call_ids for row in rows))
    repeated = sorted(call_id for call_id, count in counts.items() if count > 1)
    if repeated:
        raise RecordError("trained_twice", f"call {repeated[0]} is trained in {counts[repeated[0]]} sequences")
    if graph is None:
        return
    expected = graph.ids_to_train
    if counts.keys() != expected:
        missing, other = sorted(expected - counts.keys()), sorted(counts.keys() - expected)
        detail = f"call {missing[0]} is in no sequence" if missing else f"call {other[0]} must not be trained"
        raise RecordError("not_trained" if missing else "untrained_call", detail)
    for row in rows:
        done = [graph.sampled(call_id) for call_id in row.call_ids]
        for what, values, name in (
            ("tokens", row.token_ids, "token_ids"),
            ("log-probs", row.logprobs, "logprobs"),
            ("versions", row.versions, "versions"),
        ):
            if tuple(compress(values, row.loss_mask)) != tuple(chain.from_iterable(getattr(one, name) for one in done)):
                raise RecordError(
                    "misaligned", f"the trained {what} of call {row.call_ids[0]} are not its sampled ones"
                )
        last = graph.get(row.call_ids[-1])
        if row.token_ids != last.end_ids or row.spans != last.spans or row.temperature != last.temperature:
            raise RecordError("not_as_served", f"the sequence of call {last.id} differs from what the call was served")
