"""Runs in AReaL's own environment: a text model learns from accessibility trees of real desktops, without the vision path.

`python text_probe.py CHECKPOINT ADDRESS OUT_FOLDER`, as `training_probe.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import training_probe

SETTINGS = {
    "desktops": {"embedded": 2},
    "tasks": "areal_workflows.terminal_by_chance",
    "agent": {"observation": "words", "max_new_tokens": 5, "max_consecutive_errors": 9},
    "group_size": 2,
    "context_tokens": 12000,
    "group_timeout_s": 100,
}


def main(checkpoint: str, address: str, out: Path) -> None:
    from areal.api.cli_args import MicroBatchSpec

    trajectories = training_probe.play(checkpoint, address, [{"seed": 0}, {"seed": 1}], SETTINGS)
    actor = training_probe.actor_of(checkpoint, mb_spec=MicroBatchSpec(max_tokens_per_mb=16384))
    from deskhand.integrations.areal.patches.sdpa import install

    install()
    found = {
        "rows": [list(one["input_ids"].shape) for one in trajectories],
        "keys": sorted(trajectories[0]),
        "gap": training_probe.gap(actor, trajectories),
        "update": training_probe.update(actor, trajectories),
    }
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    os._exit(0)
