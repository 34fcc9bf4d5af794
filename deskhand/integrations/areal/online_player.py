"""Plays the rows of an experiment on the gateway of a run of AReaL in its online mode; `deskhand areal play` starts it, in AReaL's
environment. Invariant: desktops stay between episodes and are given back at the end, however it comes.

    python -m deskhand.integrations.areal.online_player --config FILE [key=value ...] FOLDER
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal.entrypoint import load, local_addresses_directly, rows_of
from deskhand.integrations.areal.online import OnlineResult, ProxyGateway, run_online
from deskhand.integrations.areal.settings import import_by_path
from deskhand.integrations.areal.worker_resources import use_worker_resources


def main(arguments: Sequence[str]) -> None:
    """The program. Exits with 2 and one line for what the user can mend."""
    local_addresses_directly()
    try:
        *words, folder = arguments
        config = load(list(words))
        agent: Any = import_by_path(config.deskhand.kind)(config.deskhand.workflow)
        at_once = agent.settings.desktops.embedded or int(config.rollout.max_concurrent_rollouts or 1)
        played = asyncio.run(_whole(agent, rows_of(config)[0], ProxyGateway.of_run(Path(folder)), at_once))
    except (ConfigError, InfrastructureError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    mean = sum(played.rewards) / max(1, len(played.rewards))
    print(f"{len(played.rewards)} episodes scored, {mean:.3f} on average; {len(played.unscored)} without a score")


async def _whole(agent: Any, rows: Sequence[dict[str, Any]], gateway: ProxyGateway, at_once: int) -> OnlineResult:
    async with use_worker_resources(agent.settings, keep=False):
        return await run_online(agent, rows, gateway, at_once=at_once)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1:])
