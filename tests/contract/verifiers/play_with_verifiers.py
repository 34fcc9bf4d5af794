"""Runs with verifiers' packages: its agent plays tasks on real desktops against an endpoint. Prints traces as JSON.

`play_with_verifiers.py URL SETTING...`: all rollouts of the taskset at once; the module is its own plug-in.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from typing import Any

from deskhand.integrations.verifiers.environment import DesktopHarness, DesktopTaskset, DesktopTasksetConfig

__all__ = ["DesktopHarness", "DesktopTaskset"]


async def main(url: str, *settings: str) -> None:
    vf: Any = importlib.import_module("verifiers.v1")
    config = DesktopTasksetConfig(overrides=("suite.families=[terminal_run]", *settings), variants=3)
    seat = vf.AgentConfig(
        model="scripted",
        client=vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY"),
        harness={"id": "play_with_verifiers"},
        runtime=vf.SubprocessConfig(),
    )
    tasks = list(DesktopTaskset(config))
    async with vf.make_agent(seat) as agent:
        traces = await asyncio.gather(*(agent.run(task) for task in tasks))
    print(json.dumps([facts(trace) for trace in traces]))


def facts(trace: Any) -> dict[str, Any]:
    messages = trace.branches[-1].messages if trace.branches else []
    parts = [part for one in messages if one.role == "user" for part in one.content if not isinstance(part, str)]
    images = [part.image_url.url[:22] for part in parts if part.type == "image_url"]
    replies = [message.content for message in trace.assistant_messages]
    found = {"key": trace.task.key, "ok": trace.ok, "prompt": trace.task.data.prompt, "turns": trace.num_turns}
    rewards = {name: reward and reward.value for name, reward in trace.rewards.items()}
    error = str(trace.last_error.message) if trace.last_error else None
    return {**found, "replies": replies, "images": images, "rewards": rewards, "error": error, "info": trace.info}


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main(*sys.argv[1:]))
