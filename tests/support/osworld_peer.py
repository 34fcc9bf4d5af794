"""Processes in environments of foreign programs, which answer JSON lines: `tests/contract/osworld/peer.py` with
OSWorld's own `desktop-env`, and others."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import limit

PEER = Path(__file__).parents[1] / "contract" / "osworld" / "peer.py"
ANSWER_S = 90.0


class Refused(Exception):
    """What a call raised over there: the name of the exception, and its text."""


class Peer:
    """The process. `log`: what it wrote beside its answers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    async def tell(self, **told: Any) -> Any:
        async with asyncio.timeout(limit(ANSWER_S)):
            return await asyncio.to_thread(self.ask, **told)

    def ask(self, **told: Any) -> Any:
        """As `tell`; blocking."""
        answer = json.loads(self._asked(json.dumps(told).encode()))
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        value = answer["value"]
        return base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value

    def _asked(self, line: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return await self.tell(do="call", on=method, arguments=arguments, named=named)

    async def make(self, address: str, key: str, cache: Path, size: tuple[int, int], *, gateway: bool = False) -> None:
        """A new `DesktopEnv` in place of the one before."""
        settings = {"screen_size": list(size), "cache_dir": str(cache), "action_space": "pyautogui"}
        await self.tell(do="make", address=address, key=key, settings=settings, gateway=gateway)
        await self.quick()

    async def controllers(self, address: str, cache: Path) -> None:
        """Its controllers alone, pointed at `address`."""
        await self.tell(do="controllers", address=address, cache=str(cache))
        await self.quick()

    async def quick(self) -> None:
        """Failures are tried again at once."""
        await self.tell(do="set", on="controller.retry_interval", value=0.01)


@contextmanager
def running(
    python: Path, folder: Path, script: Path = PEER, environment: dict[str, str] | None = None
) -> Iterator[Peer]:
    """The process, in `folder`, by default with no proxy and no netrc file."""
    environment = environment or {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name != "NETRC"
    }
    log = folder / "peer.log"
    with log.open("wb") as file:
        words, pipe = [str(python), str(script)], subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=file, cwd=folder, env=environment)
    try:
        yield Peer(process, log)
    finally:
        process.kill()
        process.communicate()
