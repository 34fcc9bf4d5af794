"""Runs with verifiers' packages: reads exported traces with verifiers' own classes and prints what they hold as JSON.

`read_traces.py FILE`. Nothing of Deskhand is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main(file: str) -> None:
    vf: Any = importlib.import_module("verifiers.v1")
    traces = [vf.WireTrace.model_validate_json(line) for line in Path(file).read_text().splitlines()]
    print(json.dumps([facts(trace) for trace in traces]))


def facts(trace: Any) -> dict[str, Any]:
    (branch,) = trace.branches
    parts = [part for one in branch.messages if one.role == "user" for part in one.content if not isinstance(part, str)]
    return {
        "ids": branch.token_ids,
        "mask": branch.sampled_mask,
        "logprobs": branch.logprobs,
        "advantages": branch.advantages,
        "reward": trace.reward,
        "turns": trace.num_turns,
        "replies": [message.content for message in trace.assistant_messages],
        "images": [part.image_url.url for part in parts if part.type == "image_url"],
        "episode_id": trace.info["episode_id"],
        "prompt": trace.task.data.prompt,
    }


if __name__ == "__main__":
    main(sys.argv[1])
