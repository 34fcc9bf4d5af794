"""Pipes to a program in the jail: whole messages, and outages within the time limit."""

from __future__ import annotations

import asyncio
import fcntl
import os

import pytest
from desktops import embedded

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import nul_pipes
from deskhand.errors import InfrastructureError

ECHO = """import os
data = b''
while chunk := os.read(3, 65536):
    data += chunk
    while b'\\0' in data:
        message, _, data = data.partition(b'\\0')
        if message == b'end': raise SystemExit
        os.write(4, message[::-1] + b'\\0')
"""
FLOOD = "import os\nwhile True: os.write(4, b'x' * 65536)"


@pytest.fixture(params=["namespaces", "plain"])
async def desktop(request):
    async with embedded(DesktopSpec("plain", 256, 192), isolation_level=request.param) as made:
        yield made


async def test_messages_go_both_ways_and_an_exit_is_detected(desktop) -> None:
    talk = await desktop.launch_piped(["/usr/bin/python3", "-c", ECHO])
    long = bytes(range(1, 256)) * 2000
    for message in (b"abc", long, b""):
        await talk.send(message)
        assert await talk.receive() == message[::-1]
    await talk.send(b"end")
    with pytest.raises(InfrastructureError, match="closed its pipe"):
        await talk.receive()


async def test_a_flooding_or_silent_program_is_an_outage(desktop, monkeypatch) -> None:
    monkeypatch.setattr(nul_pipes, "MAX_MESSAGE_BYTES", 1 << 20)
    flood = await desktop.launch_piped(["/usr/bin/python3", "-c", FLOOD])
    with pytest.raises(InfrastructureError, match="larger than 1048576 bytes"):
        await flood.receive()
    silent = await desktop.launch_piped(["sleep", "60"])
    with pytest.raises(InfrastructureError, match=r"sent nothing for 0\.2 s"):
        await silent.receive(0.2)
    await desktop.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await silent.send(b"anybody there")


async def test_reading_as_fast_as_a_program_writes_leaves_turns_to_other_tasks(tmp_path) -> None:
    pipes = nul_pipes.NulPipes(tmp_path / "pipe")
    program = os.open(tmp_path / "pipe.out", os.O_WRONLY)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    size = fcntl.fcntl(program, fcntl.F_SETPIPE_SZ, 1 << 20)
    counting = asyncio.create_task(count_turns())
    try:
        for message, number in ((b"x" * (size - 1), 1), (b"x" * 15, size // 16)):
            before, chunks = turns, size // nul_pipes._CHUNK
            os.write(program, (message + b"\0") * number)
            assert [await pipes.receive() for _ in range(number)] == [message] * number
            assert turns - before >= max(number, chunks)
    finally:
        counting.cancel()
        os.close(program)
        pipes.close()
