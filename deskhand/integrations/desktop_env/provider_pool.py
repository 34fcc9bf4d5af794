"""Pool of machines that OSWorld's own providers start, through its `DesktopEnv` in a separate environment.

`desktop-env` and its dependencies stay behind a process boundary: one `machine_process` per machine starts, reverts
and stops it. Everything else goes to the machine's server directly. Each lease begins at the machine's snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.venvs import package_path

START_TIMEOUT_S = 600.0
MAX_LINE_BYTES = 1 << 20


class ProviderMachine:
    """A machine that `python`, of an environment with `desktop-env`, starts with `provider`; `settings` are those of
    `DesktopEnv`.

    `command` replaces the script that `python` runs; `server` is (URL, key) of a desktop server that stands in for
    the provider.
    """

    def __init__(
        self,
        python: str,
        provider: str,
        settings: dict[str, Any],
        *,
        command: Sequence[str] | None = None,
        server: tuple[str, str] | None = None,
    ) -> None:
        self._command = [python, *(command or [str(Path(__file__).with_name("machine_process.py"))])]
        self._start_request = {"do": "start", "provider": provider, "settings": settings}
        if server is not None:
            self._start_request["server"] = {"address": server[0], "key": server[1]}
        self._process: asyncio.subprocess.Process | None = None
        self._num_pending = 0
        """Unread replies; more than one if a caller was canceled while waiting."""

    async def fresh(self) -> str:
        """Start the machine or restore its snapshot; returns its server's URL. Raises `InfrastructureError`."""
        if self._process is not None and self._process.returncode is None:
            return await self._send({"do": "revert"})
        # Safe path is `-P`, which a Python before 3.11 would refuse; such a Python passes over the variable.
        environment = os.environ | {"PYTHONPATH": str(package_path(os.environ)), "PYTHONSAFEPATH": "1"}
        try:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, env=environment, limit=MAX_LINE_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"{self._command[0]}: cannot be run: {error.strerror}; pass the Python that has desktop-env"
            ) from None
        self._num_pending = 0
        return await self._send(self._start_request)

    async def _send(self, request: dict[str, Any]) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            self._num_pending += 1
            line = b""
            async with asyncio.timeout(START_TIMEOUT_S):
                while self._num_pending:  # the last reply belongs to this request
                    line = await process.stdout.readline()
                    self._num_pending -= 1
            answer = json.loads(line)
        except (OSError, ValueError, TimeoutError) as error:
            await self._kill()
            raise InfrastructureError(
                f"desktop-env did not {request['do']} its machine: {type(error).__name__} {error}"
            ) from error
        if "error" in answer:
            raise InfrastructureError(
                f"desktop-env did not {request['do']} its machine: {answer['error']} {answer['message'][:300]}"
            )
        return str(answer["address"])

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def close(self) -> None:
        """Stop the machine. Idempotent."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(InfrastructureError):
                await self._send({"do": "close"})
            await self._kill()


class ProviderPool(MachinePool):
    """Leases `machines` and stops them when it is closed."""

    def __init__(
        self,
        machines: Sequence[ProviderMachine],
        *,
        spec: DesktopSpec | None = None,
        timeouts: RemoteTimeouts | None = None,
        polling: ScreenPolling | None = None,
        quota: QuotaManager | None = None,
    ) -> None:
        self._machines = {f"http://machine-{number}.invalid": machine for number, machine in enumerate(machines)}
        quota = quota or QuotaManager()

        def make(name: str) -> OsworldDesktop:
            client = RetryingClient(name, timeouts=timeouts, quota=quota)
            return OsworldDesktop(client, reset_hook=self._machines[name].fresh, polling=polling)

        super().__init__(list(self._machines), make, spec=spec, quota=quota, timeouts=timeouts)

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(machine.close() for machine in self._machines.values()))


def desktop_env_pool(
    count: int, python: str, provider: str, settings: dict[str, Any], *, spec: DesktopSpec | None = None
) -> ProviderPool:
    """Return a pool of `count` machines that `DesktopEnv(provider_name=provider, **settings)` starts under `python`."""
    return ProviderPool([ProviderMachine(python, provider, settings) for _ in range(count)], spec=spec)
