"""Recorded sequences as traces of verifiers (`verifiers.v1`, trace version 1): `verifiers_rl`, `verifiers_sft`.

Used by `formats`. A trace has a node per message with the tokens that it adds: an assistant's node begins with the
generation prompt, and its sampled tokens have log-probs and advantages. Images are `image_url` parts with the path of
their file relative to the folder of the rows.

Invariant: the nodes' token ids, one after the other, are those of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deskhand.errors import RecordError
from deskhand.integrations.recordings.rows import RecordedRow

if TYPE_CHECKING:
    from deskhand.integrations.recordings.formats import TextOf

TRACE_VERSION = 1
_TURN, _END = "<|im_start|>", "<|im_end|>"
_VISION = ("<|vision_start|>", "<|vision_end|>")


def verifiers_rl(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    yield _trace(row, texts, is_rl=True)


def verifiers_sft(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    yield _trace(row, texts, is_rl=False)


def _trace(row: RecordedRow, texts: TextOf, is_rl: bool) -> dict[str, Any]:
    """Raises `RecordError` for a sequence that is not ChatML."""
    result = row.result
    data = {"prompt": result.instruction, "family": result.family, "seed": result.seed, "split": result.split}
    return {
        "version": TRACE_VERSION,
        "task": {"type": "DesktopTask", "data": {"name": result.family, **data}, "key": result.task_id},
        "agent": {"config": {"runtime": {"type": "subprocess"}}},
        "nodes": [_node(row, texts, *bounds, is_rl) for bounds in enumerate(_turns(row, texts))],
        "mm_token_type_id_map": {texts.image_id: 1},
        "rewards": {"judge": {"score": result.reward}},
        "info": {"episode_id": result.episode_id, "group_id": row.group_id, "score": result.score},
        "is_completed": True,
        "ok": True,
    }


def _turns(row: RecordedRow, texts: TextOf) -> list[tuple[int, int]]:
    """Return the bounds of the messages; what follows a message's end is part of the next."""
    ids, mask = row.sequence.token_ids, row.sequence.loss_mask
    turn = texts.tokenizer.convert_tokens_to_ids(_TURN)
    starts = [index for index, token in enumerate(ids) if token == turn and not mask[index]]
    if not starts or starts[0] != 0:
        raise RecordError("messages", "a sequence that is not ChatML")
    return list(zip(starts, [*starts[1:], len(ids)], strict=True))


def _node(row: RecordedRow, texts: TextOf, number: int, bounds: tuple[int, int], is_rl: bool) -> dict[str, Any]:
    start, end = bounds
    sequence = row.sequence
    mask, spans = list(sequence.loss_mask[start:end]), [span for span in sequence.spans if start <= span.start < end]
    role, is_turn, content = texts.decode(sequence.token_ids[start:end]).removeprefix(_TURN).partition("\n")
    if not is_turn or role not in ("system", "user", "assistant"):
        raise RecordError("messages", f"a message of the role {role[:20]!r}")
    text = content.rpartition(_END)[0] if _END in content else content
    sampled = sum(mask)
    learned = {
        "logprobs": [logprob for logprob, own in zip(sequence.logprobs[start:end], mask, strict=True) if own],
        "advantages": None if row.advantage is None or not sampled else [row.advantage] * sampled,
    }
    return {
        "parent": number - 1 if number else None,
        "message": {"role": role, "content": _parts(text, texts, spans) if spans else text},
        "sampled": bool(sampled),
        "token_ids": list(sequence.token_ids[start:end]),
        "mask": mask,
        **(learned if is_rl else {}),
    }


def _parts(text: str, texts: TextOf, spans: list[Any]) -> list[dict[str, Any]]:
    """Return the text and images of a message in order."""
    placeholder, parts = texts.decode((texts.image_id,)), list[dict[str, Any]]()
    for span in spans:
        before, _, text = text.partition(placeholder * span.count)
        parts.append({"type": "text", "text": before.removesuffix(_VISION[0])})
        parts.append({"type": "image_url", "image_url": {"url": f"images/{span.sha256}.png"}})
        text = text.removeprefix(_VISION[1])
    return [part for part in [*parts, {"type": "text", "text": text}] if part.get("text") != ""]
