"""An episode as it is kept. Invariant: what is written is read back equal: outcome, steps, ops, call graph, log-probs to the
last bit.

An episode is kept as JSON (`to_record`) and a safetensors blob (the arrays of its call graph: int64 ids, float64 log-probs as the
engine gave them, int64 versions). Of a call that extends another only what comes after it is written.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from deskhand.actions import ops as ir
from deskhand.actions.ops import Op, Point, Space
from deskhand.agents.desktop_agent import Step, Transcript
from deskhand.errors import RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.session_store import decode_arrays, encode_arrays
from deskhand.tasks.outcome import Errored, Finding, Outcome, Scored

FORMAT = 2


@dataclass(frozen=True)
class EpisodeResult:
    """Everything that is known of one finished episode."""

    episode_id: str
    task_id: str
    family: str
    seed: int
    split: str
    group_id: str | None
    member: int
    outcome: Outcome
    reward: float | None
    """None exactly when the outcome is `Unscored`."""
    reward_terms: dict[str, float]
    """What the reward was computed from."""
    transcript: Transcript
    graph: CallGraph
    first_click_on_target: bool | None
    """None when the task has no target, or the episode is unscored."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: reset, setup, solve (of which model), judge, total."""
    version_min: int = -1
    """Of the weights that sampled it; -1 when nothing was sampled."""
    version_max: int = -1
    instruction: str = ""
    target: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) in screen pixels, where a correct first click lands."""

    @property
    def success(self) -> bool:
        return isinstance(self.outcome, Scored) and self.outcome.success

    @property
    def solved_without_action(self) -> bool:
        """Whether it scored 1 though nothing was done to the desktop, nor said that the task cannot be done."""
        performed = [op for step in self.transcript.steps if step.error is None for op in step.ops]
        return (
            self.success and self.transcript.stop_reason != "fail" and all(isinstance(op, _PASSIVE) for op in performed)
        )


_PASSIVE = (ir.Wait, ir.Screenshot, ir.Zoom, ir.Done, ir.Answer)
"""Ops that leave a desktop as it is."""


def to_record(result: EpisodeResult) -> tuple[dict[str, Any], bytes]:
    """(JSON types, safetensors bytes)."""
    record: dict[str, Any] = {"format": FORMAT}
    tensors: dict[str, np.ndarray] = {}
    for item in fields(result):
        value = getattr(result, item.name)
        if item.name == "outcome":
            record["outcome"] = {"kind": "scored" if isinstance(value, Scored) else "errored", **asdict(value)}
        elif item.name == "transcript":
            steps = [{**_shallow(step), "ops": [op_to_dict(op) for op in step.ops]} for step in value.steps]
            record["transcript"] = {**_shallow(value), "steps": steps}
        elif item.name == "graph":
            record["graph"], tensors = encode_arrays(value)
        else:
            record[item.name] = value
    return json.loads(json.dumps(record)), save(tensors)


def from_record(record: dict[str, Any], tensors: bytes) -> EpisodeResult:
    """The episode that `to_record` wrote. Raises `RecordError` for another format."""
    if record.get("format") != FORMAT:
        raise RecordError(
            "format", f"an episode record of format {record.get('format')}; this version reads format {FORMAT}"
        )
    values = {item.name: record[item.name] for item in fields(EpisodeResult)}
    outcome = dict(values["outcome"])
    if outcome.pop("kind") == "scored":
        outcome["findings"] = tuple(Finding(**finding) for finding in outcome.get("findings", ()))
        values["outcome"] = Scored(**outcome)
    else:
        values["outcome"] = Errored(**outcome)
    transcript = dict(values["transcript"])
    transcript["steps"] = tuple(
        Step(
            **{
                **step,
                "ops": tuple(op_from_dict(op) for op in step["ops"]),
                "changed_bbox": _tuple(step["changed_bbox"]),
            }
        )
        for step in transcript["steps"]
    )
    values["transcript"] = Transcript(**transcript)
    values["graph"] = decode_arrays(values["graph"], load(tensors))
    values["target"] = _tuple(values["target"])
    return EpisodeResult(**values)


def _tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _shallow(item: Any) -> dict[str, Any]:
    return {name.name: getattr(item, name.name) for name in fields(item)}


def op_to_dict(op: Op) -> dict[str, Any]:
    """An op as JSON types, points with their space."""
    return {"type": type(op).__name__, **{key: _plain(value) for key, value in _shallow(op).items()}}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(inner) for key, inner in _shallow(value).items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def op_from_dict(data: dict[str, Any]) -> Op:
    """The op that `op_to_dict` wrote."""
    return getattr(ir, data["type"])(**{key: _rebuilt(value) for key, value in data.items() if key != "type"})


def _rebuilt(value: Any) -> Any:
    if isinstance(value, dict):
        return Point(value["x"], value["y"], Space(**value["space"]))
    return tuple(_rebuilt(inner) for inner in value) if isinstance(value, list) else value
