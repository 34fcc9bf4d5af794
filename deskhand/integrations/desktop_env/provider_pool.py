"""Machines of OSWorld's own providers, started by its `DesktopEnv` in an environment of its own. Invariant: each lease begins at
the machine's snapshot, and a process that started a machine ends it.

`desktop-env` and its seventy packages stay behind a process boundary: one process for each machine, which is told to start it, to
bring it back and to end it (`compat/desktop_env_machine.py`). What is done on the machine goes to its server from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any

from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.machine_pool import MachinePool
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ScreenPolling
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import ConfigError, InfrastructureError

START_S = 600.0
LONGEST_LINE = 1 << 20
ROOT = Path(__file__).resolve().parents[3]


class ProviderMachine:
    """A machine that `python`, of an environment with `desktop-env`, starts by `provider`. `settings` are those of `DesktopEnv`.

    `command` takes the place of what `python` runs; `bridge` is (address, key) of a bridge whose desktops go by the provider's
    name.
    """

    def __init__(
        self,
        python: str,
        provider: str,
        settings: dict[str, Any],
        *,
        command: Sequence[str] | None = None,
        bridge: tuple[str, str] | None = None,
    ) -> None:
        self._command = [python, *(command or [str(_script())])]
        self._told = {"do": "start", "provider": provider, "settings": settings}
        if bridge is not None:
            self._told["bridge"] = {"address": bridge[0], "key": bridge[1]}
        self._process: asyncio.subprocess.Process | None = None
        self._owed = 0
        """Answers of the process that nobody has read yet; more than one when a caller was cancelled while it waited."""

    async def fresh(self) -> str:
        """Start the machine, or bring it back to its snapshot; its server's address. Raises `InfrastructureError`."""
        if self._process is not None and self._process.returncode is None:
            return await self._tell({"do": "revert"})
        # Safe path is `-P`, which a Python before 3.11 would refuse; such a Python passes over the variable.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=LONGEST_LINE,
            )
        except OSError as error:
            raise ConfigError(
                f"{self._command[0]} cannot be run: {error.strerror}; give the Python where desktop-env is"
            ) from None
        self._owed = 0
        return await self._tell(self._told)

    async def _tell(self, told: dict[str, Any]) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(told).encode() + b"\n")
            self._owed += 1
            line = b""
            async with asyncio.timeout(START_S):
                while self._owed:  # the last of them is the answer to this
                    line = await process.stdout.readline()
                    self._owed -= 1
            answer = json.loads(line)
        except (OSError, ValueError, TimeoutError) as error:
            await self._kill()
            raise InfrastructureError(
                f"desktop-env did not {told['do']} its machine: {type(error).__name__} {error}"
            ) from error
        if "error" in answer:
            raise InfrastructureError(
                f"desktop-env did not {told['do']} its machine: {answer['error']} {answer['message'][:300]}"
            )
        return str(answer["address"])

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def close(self) -> None:
        """End the machine. Idempotent."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(InfrastructureError):
                await self._tell({"do": "close"})
            await self._kill()


class ProviderPool(MachinePool):
    """Leases of `machines`, which are ended with it."""

    def __init__(
        self,
        machines: Sequence[ProviderMachine],
        *,
        template: DesktopSpec | None = None,
        timeouts: RemoteTimeouts | None = None,
        polling: ScreenPolling | None = None,
        quota: QuotaManager | None = None,
    ) -> None:
        self._machines = {f"http://machine-{number}.invalid": machine for number, machine in enumerate(machines)}
        quota = quota or QuotaManager()

        def make(name: str) -> OsworldDesktop:
            client = RetryingClient(name, timeouts=timeouts, quota=quota)
            return OsworldDesktop(client, reset_hook=self._machines[name].fresh, polling=polling)

        super().__init__(list(self._machines), make, template=template, quota=quota, timeouts=timeouts)

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(machine.close() for machine in self._machines.values()))


def desktop_env_pool(
    count: int, python: str, provider: str, settings: dict[str, Any], *, template: DesktopSpec | None = None
) -> ProviderPool:
    """A pool of `count` machines that `DesktopEnv(provider_name=provider, **settings)` starts under `python`."""
    return ProviderPool([ProviderMachine(python, provider, settings) for _ in range(count)], template=template)


def _script() -> Path:
    spec = util.find_spec("deskhand.integrations.desktop_env.machine_process")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "deskhand.integrations.desktop_env.machine_process is not installed; install the package again"
        )
    return Path(spec.origin)
