"""An episode as JSON that `static/` draws: steps with marks, outcome with findings, calls with tokens and messages.

Used by the report and the viewer, so that both show the same; start with `episode_data`. Text of models and guests is
unescaped: pages show it as text nodes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import structlog

from deskhand.actions.ops import Drag, Op, Point, to_screen_px
from deskhand.actions.serialization import name_of, op_to_json
from deskhand.agents.episode_context import Step
from deskhand.errors import AgentError
from deskhand.recorder.graph import CallGraph
from deskhand.rollout.episode_record import EpisodeResult, op_to_dict
from deskhand.store.run import Run
from deskhand.tasks.outcome import Scored

log = structlog.get_logger()

DecodeTokens = Callable[[Sequence[int]], str]
MILESTONE = "milestone: "
"""Prefix of milestones among the parts of an outcome."""
_TURN_START = "<|im_start|>"


def decoder_of_folder(folder: Path) -> DecodeTokens | None:
    """Return the function from token ids to text of a checkpoint folder.

    None without a tokenizer.json that can be read, or without the `tokenizers` package.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the package raises nothing more specific for a damaged file
        log.warning("tokenizer.unreadable", folder=str(folder), error=" ".join(str(error).split())[:200])
        return None
    return lambda token_ids: tokenizer.decode(list(token_ids), skip_special_tokens=False)


def decoder_of(run: Run) -> DecodeTokens | None:
    """Return the function from token ids to text for a run: of a checkpoint of it, or of the model that it names."""
    folders = [run.folder / "checkpoints" / "step-000000", *sorted((run.folder / "checkpoints").glob("step-*"))]
    model = run.metadata.get("config", {}).get("model")
    if isinstance(model, str) and model:
        bundled = Path(__file__).parent.parent / "models" / "tiny" / "weights"
        folders.append(bundled if model == "tiny" else Path(model))
    return next((decode for folder in folders if (decode := decoder_of_folder(folder)) is not None), None)


def episode_data(result: EpisodeResult, phase: str, run: Run, decode: DecodeTokens | None = None) -> dict[str, Any]:
    """Return an episode. `decode`: also with the tokens of each step; None: without."""
    outcome, transcript = result.outcome, result.transcript
    if isinstance(outcome, Scored):
        shown, value, cause = "success" if result.success else "failure", outcome.value, transcript.stop_reason
        cause, parts = cause.replace("_", " "), outcome.parts
        findings, is_untrusted = [asdict(each) for each in outcome.findings], outcome.guest_trusted
    else:
        shown, value, cause, parts = "errored", None, f"{outcome.cause}: {outcome.message}", {}
        findings, is_untrusted = [], False
    milestones = [
        {
            "name": name.removeprefix(MILESTONE),
            "value": part,
            "step": result.milestone_steps.get(name[len(MILESTONE) :]),
        }
        for name, part in parts.items()
        if name.startswith(MILESTONE)
    ]
    return {
        "id": result.episode_id,
        "phase": phase,
        "task_id": result.task_id,
        "family": result.family,
        "seed": result.seed,
        "split": result.split,
        "member": result.member,
        "instruction": result.instruction,
        "outcome": shown,
        "value": value,
        "cause": cause,
        "stop_reason": transcript.stop_reason,
        "answer": transcript.answer,
        "findings": sorted(findings, key=lambda finding: finding["value"] >= 1),
        "untrusted": is_untrusted,
        "milestones": milestones,
        "reward": result.reward,
        "terms": {**result.reward_terms, **parts, **result.reward_terms},
        "first_click_on_target": result.first_click_on_target,
        "version_min": result.version_min,
        "version_max": result.version_max,
        "steps": [_step_data(step, result.graph, run, decode) for step in transcript.steps],
        "last_frame": transcript.last_frame_sha256,
        "group": (result.group_id or "")[:8],
        "group_id": result.group_id,
        "target": result.target,
        "seconds": result.seconds,
    }


def _step_data(step: Step, graph: CallGraph, run: Run, decode: DecodeTokens | None) -> dict[str, Any]:
    """Return a model call with its tokens, and marks where its ops act on the screenshot."""
    size = run.frames.size(step.frame_sha256)
    return {
        "frame": step.frame_sha256,
        "text": step.text,
        "tokens": list(token_data(step.call_id, graph, decode)) if decode else [],
        "marks": [mark for op in step.ops for mark in _marks(op, size)] if size else [],
        "actions": [describe_op(op, size) for op in step.ops],
        "error": step.error,
        "error_kind": step.reply_error,
        "call": step.call_id,
        "settled_ms": step.settled_ms,
        "changed": step.changed_bbox,
    }


def describe_op(op: Op, size: tuple[int, int] | None) -> str:
    """Return an op as one line, such as `click 310, 42 button right`, with points in pixels of the screen."""
    try:
        values = op_to_json(op, *size) if size else {"op": name_of(type(op)), **_values(op)}
    except AgentError:  # a point off the screen
        values = {"op": name_of(type(op)), **_values(op)}
    parts = [str(values.pop("op")).replace("_", " ")]
    for name, value in values.items():
        shown = _text_of(value)
        parts.append(shown if name in ("point", "path", "text", "keys") else f"{name} {shown}")
    return " ".join(parts)


def _values(op: Op) -> dict[str, Any]:
    return {name: value for name, value in op_to_dict(op).items() if name != "type" and value not in (None, [])}


def _text_of(value: Any) -> str:
    if isinstance(value, dict):  # a point in its own space
        return f"{value.get('x')}, {value.get('y')}"
    if isinstance(value, list):
        return (" → " if any(isinstance(each, list) for each in value) else ", ").join(map(_text_of, value))
    return value if isinstance(value, str) else f"{value}"


def token_data(call_id: str, graph: CallGraph, decode: DecodeTokens) -> Iterable[dict[str, Any]]:
    """Yield the sampled tokens of a call; none if the call is not in the graph.

    `entropy` is that of the recorded alternatives in nats, a lower bound; missing unless they were recorded.
    """
    try:
        done = graph.sampled(call_id)
    except KeyError:
        return
    for index, (token_id, logprob, version) in enumerate(
        zip(done.token_ids, done.logprobs, done.versions, strict=True)
    ):
        token: dict[str, Any] = {"text": decode([token_id]), "logprob": logprob, "version": version}
        if done.top_logprobs:
            alternatives = done.top_logprobs[index]
            token["alternatives"] = [[decode([other]), its] for other, its in alternatives]
            token["entropy"] = -sum(math.exp(its) * its for _, its in alternatives if math.isfinite(its))
        yield token


def calls_data(graph: CallGraph) -> list[dict[str, Any]]:
    """Return the calls of an episode in order: which call each extends, in which sequence, and whether it is trained.

    A call that extends no earlier call begins a sequence: the first one, and every fork.
    """
    found: list[dict[str, Any]] = []
    index = {name: number for number, name in enumerate(graph.ids)}
    num_sequences = 0
    for name in graph.ids:
        entry = graph.call_to_dict(name)
        extended = index.get(entry["parent"])
        parent = found[extended] if extended is not None else None
        num_sequences += parent is None
        before = parent["prompt_tokens"] + parent["reply_tokens"] if parent else 0
        found.append(
            {
                "id": name,
                "agent": entry.get("agent", ""),
                "parent": extended,
                "sequence": parent["sequence"] if parent else num_sequences,
                "prompt_tokens": before + len(entry["new_prompt_ids"]),
                "reply_tokens": len(entry["token_ids"]),
                "finish_reason": entry["finish_reason"],
                "temperature": entry["temperature"],
                "versions": sorted(set(entry["versions"])),
                "logprob": sum(entry["logprobs"]),
                "untrained": graph.untrained.get(name),
            }
        )
    return found


def call_data(graph: CallGraph, call_id: str, decode: DecodeTokens | None) -> dict[str, Any]:
    """Return the messages of a call exactly as the model read them, and the tokens of its reply. Raises `KeyError`.

    `turns`: role, whether the call it extends had it already, and parts, each text or an image. The texts are the
    decoded prompt ids, special tokens included; without a tokenizer there are none.
    """
    call = graph.get(call_id)
    parent = call.parent
    known = graph.get(parent).end if parent is not None else 0
    turns = _turns(call.prompt_ids, [(span.start, span.count, span.sha256) for span in call.spans], known, decode)
    tokens = list(token_data(call_id, graph, decode)) if decode else []
    served = call.completion.served_ids
    return {
        "id": call_id,
        "turns": turns if decode else [],
        "images": [span.sha256 for span in call.spans],
        "tokens": tokens,
        "text": call.text,
        "served": "equal to the prompt" if served in ((), call.prompt_ids) else f"{len(served)} other ids",
        "has_tokenizer": decode is not None,
    }


def _turns(
    token_ids: Sequence[int], spans: Sequence[tuple[int, int, str]], known: int, decode: DecodeTokens | None
) -> list[dict[str, Any]]:
    """Return the turns of a prompt. A turn begins at the token `<|im_start|>`, not at text that looks like it."""
    if decode is None:
        return []
    starts = _turn_starts(token_ids, decode)
    cuts = sorted(
        {0, known, len(token_ids), *starts, *(at for start, count, _ in spans for at in (start, start + count))}
    )
    images = {start: sha256 for start, _, sha256 in spans}
    turns: list[dict[str, Any]] = []
    for start, end in pairwise(cuts):
        if start >= len(token_ids):
            break
        if not turns or start in starts or (start == known and start):
            turns.append({"role": "", "is_known": start < known, "parts": []})
        if start in images:
            turns[-1]["parts"].append({"image": images[start], "tokens": end - start})
        else:
            turns[-1]["parts"].append({"text": decode(token_ids[start:end])})
    for turn in turns:
        head = turn["parts"][0].get("text", "")
        if head.startswith(_TURN_START):
            turn["role"] = head[len(_TURN_START) :].split("\n", 1)[0][:40]
    return turns


def _turn_starts(token_ids: Sequence[int], decode: DecodeTokens) -> set[int]:
    kinds = {token_id: decode([token_id]) == _TURN_START for token_id in set(token_ids)}
    return {index for index, token_id in enumerate(token_ids) if kinds[token_id]}


def _marks(op: Op, size: tuple[int, int]) -> Iterable[dict[str, Any]]:
    """Yield where an op acts in screen pixels; nothing for ops without a point or with one off the screen."""
    points: tuple[Point, ...] = op.path if isinstance(op, Drag) else ()
    point = getattr(op, "point", None)
    if isinstance(point, Point):
        points = (point,)
    try:
        pixels = [to_screen_px(point, *size) for point in points]
    except AgentError:
        return
    if pixels:
        yield {"kind": type(op).__name__.lower(), "points": pixels}
