"""Runs in AReaL's own environment: a task of OSWorld on real desktops, its reward from its own evaluator, trained by AReaL's actor.

`python osworld_probe.py CHECKPOINT ADDRESS TASK_FILE OUT_FOLDER`, as `training_probe.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import training_probe

SETTINGS = {
    "desktops": {"embedded": 2},
    "tasks": "areal_osworld.task",
    "agent": {"max_new_tokens": 5, "max_consecutive_errors": 9},
    "group_size": 2,
    "context_tokens": 1024,
    "group_timeout_s": 200,
}


def main(checkpoint: str, address: str, task_file: str, out: Path) -> None:
    import areal_osworld

    trajectories = training_probe.play(
        checkpoint, address, [{"osworld": task_file}], SETTINGS, "areal_osworld.OsworldWorkflow"
    )
    results = areal_osworld.OsworldWorkflow.results
    found = {"outcomes": [[str(result.outcome), result.reward] for result in results], "rows": len(trajectories)}
    (out / "found.json").write_text(json.dumps(found))
    from deskhand.integrations.areal.patches.sdpa import install

    install()
    actor = training_probe.actor_of(checkpoint)
    found |= {"gap": training_probe.gap(actor, trajectories), "update": training_probe.update(actor, trajectories)}
    found["advantages"] = trajectories[0]["rewards"].tolist()
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    os._exit(0)
