"""Runs in AReaL's own environment: `python ray_actors.py OUT.json` writes on which node each actor of a Ray cluster
ran, the ended ones, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ray
from ray._private import state

ray.init()
found = [
    {"name": actor.get("Name"), "node": (actor.get("Address") or {}).get("IPAddress"), "state": actor.get("State")}
    for actor in state.actors().values()
]
Path(sys.argv[1]).write_text(json.dumps(found))
