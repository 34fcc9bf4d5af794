"""Ways to reset a machine: a user-supplied command (`desktop.reset_command`), and QEMU's human monitor (WAA).

WAA's image has the human monitor at port 7100 and QMP at 7200. After a reset the guest needs about 90 s until it
responds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from urllib.parse import urlsplit

from deskhand.errors import ConfigError, InfrastructureError

TIMEOUT_S = 600.0
"""Time limit of a reset."""
MAX_ERROR_CHARS = 300
"""Characters of the command's stderr in an error message."""
_PROMPT = b"(qemu)"
MONITOR_TIMEOUT_S = 10.0


class ResetCommand:
    """Runs `argv` on this machine, without a shell, with `{address}`, `{host}` and `{port}` of the machine filled in.

    The reset succeeded only if the command exits with 0. It does not outlive its timeout or the caller. Raises
    `ConfigError` if the program does not exist.
    """

    def __init__(self, argv: Sequence[str], url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        values = {"{address}": url, "{host}": parts.hostname or "", "{port}": str(port)}
        self._argv = [_fill_in(word, values) for word in argv]
        self._url, self._timeout_s = url, timeout_s
        if shutil.which(self._argv[0]) is None:
            raise ConfigError(f"desktop.reset_command: program {self._argv[0]} not found; use its full path")

    async def reset(self) -> str | None:
        """Run the command. Returns the URL in its last line of output, if any: the machine's new address.

        Raises `InfrastructureError` if it fails or times out.
        """
        about = f"desktop.reset_command for {self._url} ({self._argv[0]})"  # no arguments: they may contain passwords
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise InfrastructureError(f"{about}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise InfrastructureError(f"{about}: timed out after {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            message = " ".join(err.decode(errors="replace").split())[-MAX_ERROR_CHARS:]
            raise InfrastructureError(f"{about}: exit code {process.returncode}: {message}")
        last = out.decode(errors="replace").strip().rpartition("\n")[2].strip()
        return last if last.startswith(("http://", "https://")) else None


class QemuMonitor:
    """`await QemuMonitor(host).reset()` presses the machine's reset button."""

    def __init__(self, host: str, port: int = 7100) -> None:
        self._host, self._port = host, port

    async def reset(self) -> None:
        """Reset the machine. Raises `InfrastructureError` if the monitor does not respond."""
        name = f"QEMU monitor {self._host}:{self._port}"
        try:
            async with asyncio.timeout(MONITOR_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    await reader.readuntil(_PROMPT)
                    writer.write(b"system_reset\n")
                    await writer.drain()
                    await reader.readuntil(_PROMPT)
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise InfrastructureError(f"{name}: no reply: {type(error).__name__} {error}") from None


def _fill_in(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
