"""The monitor of a QEMU machine. Invariant: a machine is reset only when its monitor has taken the command.

WAA's image has the human monitor at port 7100 and QMP at 7200; a reset takes about a minute and a half until the guest answers.
"""

from __future__ import annotations

import asyncio

from deskhand.errors import InfrastructureError

_PROMPT = b"(qemu)"
ANSWER_S = 10.0


class QemuMonitor:
    """`await QemuMonitor(host).reset()` presses the machine's reset button."""

    def __init__(self, host: str, port: int = 7100) -> None:
        self._host, self._port = host, port

    async def reset(self) -> None:
        """Raises `InfrastructureError` when the monitor does not answer."""
        await self.say("system_reset")

    async def say(self, command: str) -> str:
        """What the monitor answers to one command."""
        where = f"the QEMU monitor at {self._host}:{self._port}"
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    await reader.readuntil(_PROMPT)
                    writer.write(command.encode() + b"\n")
                    await writer.drain()
                    return (
                        (await reader.readuntil(_PROMPT))
                        .decode(errors="replace")
                        .removesuffix(_PROMPT.decode())
                        .strip()
                    )
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise InfrastructureError(f"{where} did not answer: {type(error).__name__} {error}") from None
