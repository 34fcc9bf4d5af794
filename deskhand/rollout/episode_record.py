"""Result of an episode and its stored form.

`to_record` and `from_record` convert between `EpisodeResult` and JSON plus a safetensors blob with the arrays of the
call graph (int64 ids, float64 log-probs, int64 versions). A call that extends another stores only its own tokens.

Invariant: the round trip is exact, log-probs included.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from deskhand.actions import ops as ir
from deskhand.actions.ops import Op, Point, Space
from deskhand.agents.episode_context import Step, Transcript
from deskhand.errors import RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.session_store import decode_arrays, encode_arrays
from deskhand.tasks.outcome import Errored, Finding, Outcome, Scored

FORMAT = 2


@dataclass(frozen=True)
class EpisodeResult:
    """A finished episode."""

    episode_id: str
    task_id: str
    family: str
    seed: int
    split: str
    group_id: str | None
    member: int
    outcome: Outcome
    reward: float | None
    """None if and only if the outcome is `Errored`."""
    reward_terms: dict[str, float]
    """Terms of the reward."""
    transcript: Transcript
    graph: CallGraph
    first_click_on_target: bool | None
    """None if the task has no target or the episode errored."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: reset, setup, solve, model (part of solve), judge, quota_wait, total (without quota_wait)."""
    version_min: int = -1
    """Lowest version of the weights that sampled a token; -1 if nothing was sampled."""
    version_max: int = -1
    """Highest version of the weights that sampled a token; -1 if nothing was sampled."""
    instruction: str = ""
    target: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of the first-click target in screen pixels."""
    milestone_steps: dict[str, int] = field(default_factory=dict)
    """Index of the step after which a milestone had its value; -1: the start screen. Not in older records."""

    @property
    def score(self) -> float:
        """The judge's score in [0, 1]. Raises `ValueError` for an errored episode."""
        if not isinstance(self.outcome, Scored):
            raise ValueError(f"{self.episode_id} has no score: {self.outcome.message}")
        return self.outcome.value

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its model calls and their results."""
        return self.transcript.steps

    @property
    def success(self) -> bool:
        return isinstance(self.outcome, Scored) and self.outcome.success

    @property
    def solved_without_action(self) -> bool:
        """Whether the episode scored 1 without acting on the desktop or declaring the task infeasible."""
        performed = [op for step in self.transcript.steps if step.error is None for op in step.ops]
        return (
            self.success
            and self.transcript.stop_reason != "fail"
            and all(isinstance(op, ir.PASSIVE_OPS) for op in performed)
        )


def to_record(result: EpisodeResult) -> tuple[dict[str, Any], bytes]:
    """Return (JSON record, safetensors bytes)."""
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
    """Return the episode of a record. Raises `RecordError` for another format."""
    if record.get("format") != FORMAT:
        raise RecordError(
            "format", f"episode record has format {record.get('format')}, this version reads format {FORMAT}"
        )
    values = {item.name: record[item.name] for item in fields(EpisodeResult) if item.name != "milestone_steps"}
    values["milestone_steps"] = record.get("milestone_steps", {})
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
    """Return an op as JSON types, points with their coordinate space."""
    return {"type": type(op).__name__, **{key: _plain(value) for key, value in _shallow(op).items()}}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(inner) for key, inner in _shallow(value).items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def op_from_dict(data: dict[str, Any]) -> Op:
    """Return the op of `op_to_dict`."""
    return getattr(ir, data["type"])(**{key: _from_plain(value) for key, value in data.items() if key != "type"})


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return Point(value["x"], value["y"], Space(**value["space"]))
    return tuple(_from_plain(inner) for inner in value) if isinstance(value, list) else value
