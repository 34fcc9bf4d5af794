"""Finished episodes made by hand."""

from __future__ import annotations

from typing import Any

from deskhand.actions.ops import REL_1000, Click, Done, Point, Type, screen_px
from deskhand.agents.episode_context import Step, Transcript
from deskhand.recorder.graph import Call, CallGraph
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.tasks.outcome import Errored, Scored
from deskhand.types import Completion, ImageSpan


def call(name: str, parent: Call | None, new: tuple[int, ...], sampled: tuple[int, ...], version: int) -> Call:
    """A call that extends `parent`, with an image in what is new."""
    prompt = (parent.end_ids if parent else ()) + new
    spans = (parent.spans if parent else ()) + (ImageSpan(len(prompt) - len(new) + 1, 2, f"{name:0>64}"),)
    logprobs = tuple(-0.1 * (index + 1) / 3 for index in range(len(sampled)))
    done = Completion(sampled, logprobs, (version,) * len(sampled), "stop", prompt)
    return Call(name, parent.id if parent else None, prompt, spans, done, 1.0, f"text {name} é")


def step(index: int, ops: tuple[Any, ...]) -> Step:
    """One that was understood and performed."""
    return Step(index, "text", ops, None, "e" * 64, "a3", 1.0, None)


def graph(version: int = 3) -> CallGraph:
    first = call("a1", None, (1, 9, 9, 2), (5, 6, 7), version)
    second = call("a2", first, (1, 9, 9, 3), (8,), version + 1)
    return CallGraph([first, second, call("a3", None, (4, 9, 9), (5,), version + 1)])


def result(
    reward: float | None = 1.0,
    *,
    episode_id: str = "e1",
    cause: Any = "infrastructure",
    version: int = 3,
    **changes: Any,
):
    """An episode with three steps; `reward` None is an unscored one."""
    steps = (
        Step(
            0,
            "text",
            (Click(Point(10, 20, REL_1000), "right", 2, ("ctrl",)), Type("é\n")),
            None,
            "f" * 64,
            "a1",
            12.5,
            (1, 2, 3, 4),
        ),
        Step(1, "nonsense", (), "not JSON", "e" * 64, "a2", 0.0, None),
        Step(2, "done", (Click(Point(1, 2, screen_px(64, 48))), Done()), None, "e" * 64, "a3", 1.0, None),
    )
    values: dict[str, Any] = {
        "episode_id": episode_id,
        "task_id": "painted/square/1",
        "family": "square",
        "seed": 1,
        "split": "train",
        "group_id": None,
        "member": 0,
        "outcome": Scored(reward, {"end_state": reward}) if reward is not None else Errored(cause, "it broke"),
        "reward": reward,
        "reward_terms": {"final": 1.0} if reward is not None else {},
        "transcript": Transcript(steps, "done", "d" * 64, 0.25),
        "graph": graph(version),
        "first_click_on_target": True if reward is not None else None,
        "seconds": {"solve": 1.5, "total": 2.0},
        "version_min": version,
        "version_max": version + 1,
        "instruction": "Do it",
        "target": (1, 2, 3, 4),
    }
    return EpisodeResult(**{**values, **changes})
