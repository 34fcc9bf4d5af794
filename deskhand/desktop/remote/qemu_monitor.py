"""Client of QEMU's human monitor, to reset a WAA machine.

WAA's image has the human monitor at port 7100 and QMP at 7200. After a reset the guest needs about 90 s until it
responds.
"""

from __future__ import annotations

import asyncio

from deskhand.errors import InfrastructureError

_PROMPT = b"(qemu)"
REPLY_TIMEOUT_S = 10.0


class QemuMonitor:
    """`await QemuMonitor(host).reset()` presses the machine's reset button."""

    def __init__(self, host: str, port: int = 7100) -> None:
        self._host, self._port = host, port

    async def reset(self) -> None:
        """Reset the machine. Raises `InfrastructureError` if the monitor does not respond."""
        await self.send("system_reset")

    async def send(self, command: str) -> str:
        """Return the monitor's reply to a command."""
        name = f"QEMU monitor {self._host}:{self._port}"
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    await reader.readuntil(_PROMPT)
                    writer.write(command.encode() + b"\n")
                    await writer.drain()
                    reply = await reader.readuntil(_PROMPT)
                    return reply.decode(errors="replace").removesuffix(_PROMPT.decode()).strip()
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise InfrastructureError(f"{name}: no reply: {type(error).__name__} {error}") from None
