"""Runs in AReaL's own environment: episodes on real desktops, trained by AReaL's actor.

`python desktops_probe.py KIND CHECKPOINT ADDRESS [TASK_FILE] OUT_FOLDER`, as `training_probe.py`. KIND "text": a text
model learns from accessibility trees, without the vision path; "osworld": a task of OSWorld with the reward of its own
evaluator; "sources": a task of each benchmark on machines that are leased from desktop servers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import training_probe

SHARED: dict[str, Any] = {"desktops": {"local": 2}, "group_timeout_s": 200}
SMALL: dict[str, Any] = {"group_size": 2, "max_group_retries": 0}


def text(checkpoint: str, address: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    settings = SHARED | {
        "tasks": "areal_workflows.terminal_by_chance",
        "agent": {"observation": "a11y_tree", "max_new_tokens": 5, "max_consecutive_errors": 9},
        "loop": SMALL,
        "engine": {"max_model_len": 12000},
    }
    return training_probe.play(checkpoint, address, [{"seed": 0}, {"seed": 1}], settings), {}


def osworld(checkpoint: str, address: str, task_file: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from areal_osworld import OsworldWorkflow

    settings = SHARED | {
        "tasks": "areal_osworld.task",
        "agent": {"max_new_tokens": 5, "max_consecutive_errors": 9},
        "loop": SMALL,
        "engine": {"max_model_len": 1024},
    }
    trajectories = training_probe.play(
        checkpoint, address, [{"osworld": task_file}], settings, "areal_osworld.OsworldWorkflow"
    )
    return trajectories, {"outcomes": [[str(result.outcome), result.reward] for result in OsworldWorkflow.results]}


def sources(checkpoint: str, address: str, listed: str, out: str) -> None:
    """Play and train a group of each source, on the machines of its desktop server."""
    from areal_machines import SourcesWorkflow

    from deskhand.models.packed_attention import separate_packed_rows

    found: dict[str, Any] = {}
    trajectories: dict[str, list[dict[str, Any]]] = {}
    for source in json.loads(Path(listed).read_text()):
        settings = {
            "desktops": {"server_url": source["server_url"]},
            "group_timeout_s": 200,
            "agent": {"max_new_tokens": 5, "max_consecutive_errors": 9},
            "loop": SMALL,
            "engine": {"max_model_len": 1024},
        }
        SourcesWorkflow.results.clear()
        rows = [json.loads(json.dumps(source["row"]))]
        trajectories[source["name"]] = training_probe.play(
            checkpoint, address, rows, settings, "areal_machines.SourcesWorkflow"
        )
        outcomes = [[str(result.outcome), result.reward] for result in SourcesWorkflow.results]
        found[source["name"]] = {"outcomes": outcomes}
    separate_packed_rows()
    actor = training_probe.actor_of(checkpoint)
    for name, batch in trajectories.items():
        found[name] |= {"gap": training_probe.gap(actor, batch)} if batch else {}
    for name, batch in trajectories.items():
        if batch:
            update, advantages = training_probe.update(actor, batch), batch[0]["rewards"].tolist()
            found[name] |= {"update": update, "advantages": advantages}
    (Path(out) / "found.json").write_text(json.dumps(found))


def main(kind: str, checkpoint: str, *rest: str) -> None:
    from areal.api.cli_args import MicroBatchSpec

    from deskhand.models.packed_attention import separate_packed_rows

    *arguments, out = rest
    trajectories, found = {"text": text, "osworld": osworld}[kind](checkpoint, *arguments)
    separate_packed_rows()
    actor = training_probe.actor_of(checkpoint, mb_spec=MicroBatchSpec(max_tokens_per_mb=16384))
    found |= {"rows": [list(one["input_ids"].shape) for one in trajectories], "keys": sorted(trajectories[0])}
    found |= {"gap": training_probe.gap(actor, trajectories), "update": training_probe.update(actor, trajectories)}
    found["advantages"] = trajectories[0]["rewards"].tolist()
    (Path(out) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "sources":
        sources(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
    os._exit(0)
