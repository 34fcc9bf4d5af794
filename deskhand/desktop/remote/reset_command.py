"""A machine that is brought back by a command of the user's. Invariant: a machine has been reset only when the command has ended
with 0, and no command outlives its time or the wait for it.
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

LONGEST_S = 600.0
"""How long a machine may take to be brought back."""
MOST_SAID = 300
"""Characters of what the command said that an error tells."""


class ResetCommand:
    """`words` with `{address}`, `{host}` and `{port}` of the machine at `address` in their places, run on this machine, without a
    shell. Raises `ConfigError` for a program that is not here."""

    def __init__(self, words: Sequence[str], address: str, longest_s: float = LONGEST_S) -> None:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        marks = {"{address}": address, "{host}": parts.hostname or "", "{port}": str(port)}
        self._words = [_filled(word, marks) for word in words]
        self._address, self._longest_s = address, longest_s
        if shutil.which(self._words[0]) is None:
            raise ConfigError(
                f"desktop.reset_command: {self._words[0]} is no program that this machine can run; give its path"
            )

    async def reset(self) -> str | None:
        """Run it; the address that it printed as its last line, if it did: that is where the machine is from then on.

        Raises `InfrastructureError` when it fails or takes too long."""
        about = f"desktop.reset_command of {self._address} by {self._words[0]}"  # further words may hold a password
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise InfrastructureError(f"{about}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._longest_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise InfrastructureError(f"{about}: took longer than {self._longest_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            said = " ".join(err.decode(errors="replace").split())[-MOST_SAID:]
            raise InfrastructureError(f"{about}: ended with {process.returncode}: {said}")
        last = out.decode(errors="replace").strip().rpartition("\n")[2].strip()
        return last if last.startswith(("http://", "https://")) else None


def _filled(word: str, marks: dict[str, str]) -> str:
    for mark, value in marks.items():
        word = word.replace(mark, value)
    return word
