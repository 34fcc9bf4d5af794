"""An engine's server as a child process. Invariant: it never outlives us, and its end is always noticed.

The child leads a process group of its own and reads a pipe that we hold: when we end, however that happens, the pipe closes and the
child kills its group (`engines/vllm/serve.py` does that on its side). It listens on a Unix socket in a folder that only this
user can enter, so nothing else on the machine or the network can command it.
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
    """Starts and ends one server; `command(socket)` is its command line. What it prints goes to `log`, which is appended to."""

    def __init__(self, command: Callable[[str], Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self.log = command, dict(environment), log
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self.starts = 0

    async def start(self) -> HttpEndpoint:
        """Start it; it listens some time later. Raises `ConfigError` when the program cannot be started at all."""
        await self.end()
        self.starts += 1
        self._folder = tempfile.mkdtemp(prefix="deskhand-engine-")  # mode 0700
        socket = os.path.join(self._folder, "socket")
        words = list(self._command(socket))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(
                    f"{words[0]}: cannot be started ({error.strerror}); check the engine's environment"
                ) from None
        return HttpEndpoint("http://engine", socket=socket)

    @property
    def pid(self) -> int | None:
        """Of the child, which leads the group; None when none was started."""
        return self._process.pid if self._process is not None else None

    @property
    def ended(self) -> str | None:
        """How the child ended; None while it runs."""
        if self._process is None:
            return "it was not started"
        code = self._process.returncode
        if code is None:
            return None
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"

    async def end(self) -> None:
        """Kill the group and wait for the child."""
        process, self._process = self._process, None
        if process is not None:
            # Also when the child has ended: its children may be left, and the group's id is not given anew while one is.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def last_words(self) -> str:
        """The last lines of the log, as one line."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                lines = deque((line.strip() for line in file if line.strip()), _SHOWN_LINES)
        except OSError:
            return "nothing"
        return " | ".join(lines)[-600:] or "nothing"
