"""Engine server as a child process. Used by `http_engine.engine`.

The child leads its own process group and reads a pipe of this process. When this process ends, the pipe closes and the
child kills its group (see `engines/vllm/serve.py`). It listens on a Unix socket in a folder that only this user can
access.

Invariant: the server never outlives this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deskhand.engines.http_engine.endpoint import HttpEndpoint
from deskhand.errors import ConfigError

_SHOWN_LINES = 6


class ServerProcess:
    """Starts and stops one server with the command line `command(socket)`; its output is appended to `log`."""

    def __init__(self, command: Callable[[str], Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self.log = command, dict(environment), log
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self.starts = 0

    async def start(self) -> HttpEndpoint:
        """Start the server; it listens some time later. Raises `ConfigError` if the program cannot be started."""
        await self.stop()
        self.starts += 1
        self._folder = tempfile.mkdtemp(prefix="deskhand-engine-")  # mode 0700
        socket = os.path.join(self._folder, "socket")
        command = list(self._command(socket))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(
                    f"{command[0]}: cannot be started ({error.strerror}); check the engine's environment"
                ) from None
        return HttpEndpoint("http://engine", socket=socket)

    @property
    def pid(self) -> int | None:
        """Process id of the child, which leads the group; None if not started."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_reason(self) -> str | None:
        """How the child ended; None while it runs."""
        if self._process is None:
            return "it was not started"
        code = self._process.returncode
        if code is None:
            return None
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"

    async def stop(self) -> None:
        """Kill the group and wait for the child."""
        process, self._process = self._process, None
        if process is not None:
            # Also if the child has ended: its children may remain, and then the group id is not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def last_output(self) -> str:
        """Return the last lines of the log, as one line."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                lines = deque((line.strip() for line in file if line.strip()), _SHOWN_LINES)
        except OSError:
            return "(empty)"
        return " | ".join(lines)[-600:] or "(empty)"
