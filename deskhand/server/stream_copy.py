"""Bytes from one connection to another. Invariant: what has come is passed on whole and in order, and an end as an end.

The standard library only: OSWorld's clients use it where nothing else of the bridge can be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_CHUNK = 64 << 10


async def copy_stream(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, heard: Callable[[], None] = lambda: None
) -> None:
    """Pass bytes until `source` has ended, and say so to `sink`; `heard` is called whenever some came. Raises `OSError`."""
    while data := await source.read(_CHUNK):
        heard()
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
    else:
        sink.close()  # TLS has no half of an end
