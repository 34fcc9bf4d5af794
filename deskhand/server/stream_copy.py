"""Copy bytes between two connections, including the end of stream.

Used by tunnels and port forwards. Standard library only: it also runs in environments without Deskhand's
dependencies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_CHUNK = 64 << 10


async def copy_stream(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, on_data: Callable[[], None] = lambda: None
) -> None:
    """Copy until `source` ends, then signal the end to `sink`; calls `on_data` for each chunk. Raises `OSError`."""
    while data := await source.read(_CHUNK):
        on_data()
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
    else:
        sink.close()  # TLS cannot half-close
