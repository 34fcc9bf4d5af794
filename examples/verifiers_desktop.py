"""Tasks on real desktops for verifiers. Run: python examples/verifiers_desktop.py http://127.0.0.1:8000/v1 MODEL
Needs verifiers: pip install verifiers. In its own programs the taskset has the name of this module."""

import asyncio
import sys

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from deskhand.integrations.verifiers.environment import DesktopHarness, DesktopTaskset, DesktopTasksetConfig

__all__ = ["DesktopHarness", "DesktopTaskset"]


async def main(url: str, model: str, *overrides: str) -> None:
    tasks = DesktopTaskset(DesktopTasksetConfig(overrides=["suite.families=[terminal_run]", *overrides], variants=2))
    client = vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY")
    harness, runtime = {"id": "verifiers_desktop"}, vf.SubprocessConfig()
    config = vf.AgentConfig(model=model, client=client, harness=harness, runtime=runtime)
    async with vf.make_agent(config) as agent:
        for trace in await asyncio.gather(*(agent.run(task) for task in tasks)):
            print(trace.task.key, f"{trace.num_turns} turns, reward {trace.reward}" if trace.ok else trace.last_error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
