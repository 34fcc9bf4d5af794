"""Rows 6, 7, 9 to 12 and 15: faults on the local machine (desktops, processes, frames, disks, evaluators, guests)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks.fault_rows.parts import (
    QUICK,
    SCREEN,
    CountedEpisodes,
    Faults,
    Row,
    faulty_server,
    pointing_task,
    scaled,
)
from benchmarks.thresholds import ROOT
from deskhand.actions.ops import Click, Point, screen_px
from deskhand.desktop import frame_codec
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import available_isolation, guests_can_kill_this_user
from deskhand.desktop.remote import screenshots
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.errors import FrameError, InfrastructureError
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import CheckResult

SMALL = DesktopSpec("plain", 320, 240)


async def row_6(size: float, folder: Path) -> Row:
    """Frozen X server or application."""
    row = Row(6, "SIGSTOP X server / application")
    for part in ("x server", "applications"):
        desktop = LocalDesktop(settle_timeout_s=1.0)
        await desktop.reset(SMALL)
        await desktop.launch(["xterm", "-geometry", "20x4"])
        await desktop.wait_window("xterm")
        pid = desktop.parts()[part][0]
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        row.injected += 1
        row.steps += 1
        row.survived += 1
        try:
            await desktop.perform([Click(Point(50, 50, screen_px(320, 240)))], action_id="1")
        except InfrastructureError:
            row.unscored += 1
        took_s = time.monotonic() - began
        row.recovery_s.append(took_s)
        row.demand(took_s < 10, f"{part}: nobody noticed for {took_s:.1f} s")
        os.kill(pid, signal.SIGCONT) if psutil.pid_exists(pid) else None
        pids = desktop.processes()
        await desktop.close()
        await _gone(row, pids, part)
    return row


async def _gone(row: Row, pids: list[int], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if _lives(pid)]:
        if time.monotonic() > deadline:
            row.wrong.append(f"{what}: {len(left)} processes are left after {seconds:g} s")
            return
        await asyncio.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def row_7(size: float, folder: Path) -> Row:
    """Killed desktop parts, servers and trainers leave nothing behind."""
    row = Row(7, "SIGKILL X server, manager, application, server, gateway, trainer")
    for part in ("x server", "window manager", "applications"):
        desktop = LocalDesktop()
        await desktop.reset(SMALL)
        await desktop.launch(["xterm", "-geometry", "20x4"])
        await desktop.wait_window("xterm")
        pids = desktop.processes()
        os.kill(desktop.parts()[part][0], signal.SIGKILL)
        row.injected += 1
        began = time.monotonic()
        try:
            for number in range(50):
                await desktop.perform([Click(Point(50, 50, screen_px(320, 240)))], action_id=str(number))
                await asyncio.sleep(0.05)
            row.wrong.append(f"{part}: its death went unnoticed")
        except InfrastructureError:
            row.unscored += 1
        await desktop.reset(SMALL)
        row.survived += 1
        row.recovery_s.append(time.monotonic() - began)
        pids += desktop.processes()
        await desktop.close()
        await _gone(row, pids, part)
    for number in range(scaled(size, 1, 5)):
        await _kill_servers(row, folder, number)
    row.note = "0 orphans"
    return row


_TRAINER = """\
import asyncio, sys
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
async def main():
    server, gateway, key, token = sys.argv[1:]
    screen = DesktopSpec("plain", 320, 240)
    pools = [ServerPool(server, key, spec=screen), SandboxPool(gateway, token, spec=screen, ttl_s=2.0)]
    leases = [await pool.lease() for pool in pools]
    for lease in leases:
        await lease.desktop.observe()
    print("leased", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def _kill_servers(row: Row, folder: Path, number: int) -> None:
    """Kill a server, a gateway in front of it and a trainer on both, in random order."""
    key, token = "a-key-for-the-kill-rows", "a-token-for-the-kill-rows"
    tokens = folder / f"tokens-{number}"
    tokens.write_text(token)
    tokens.chmod(0o600)
    environment = os.environ | {"DESKHAND_SERVER_API_KEY": key, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "deskhand"]
    options = "serve desktops --port 0 --desktops 3 --prewarm 0 --screen 320x240 --idle-s 2 --no-accessibility"
    serve = [*command, *options.split(), "--lease-db", str(folder / f"leases-{number}.sqlite")]
    order = ["trainer", "gateway", "server"]
    random.Random(number).shuffle(order)
    running: dict[str, subprocess.Popen[str]] = {}
    log = folder / f"complaints-{number}.txt"
    try:
        server, address = _started(serve, environment, log)
        running["server"] = server
        front = [*command, "serve", "sandboxes", address, "--port", "0", "--tokens-file", str(tokens)]
        running["gateway"], gateway_address = _started(front, environment, log)
        trainer = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", _TRAINER, address, gateway_address, key, token],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        running["trainer"] = trainer
        assert trainer.stdout is not None
        printed: list[str] = []  # its log, too: on a busy machine it waits for quota
        while (not printed or printed[-1]) and printed[-1:] != ["leased\n"]:
            printed.append(await asyncio.to_thread(trainer.stdout.readline))
        row.demand(printed[-1] == "leased\n", f"the trainer could not lease: {printed}")
        desktops = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
        for name in order:
            running[name].send_signal(signal.SIGKILL)
            await asyncio.to_thread(running[name].wait)
            row.injected += 1
            row.survived += 1
            began = time.monotonic()
            if name == "trainer" and running["server"].poll() is None:
                await _until_free(row, address, key, began)
        await _gone(row, desktops, "a killed server")
        again, second = _started(serve, environment, log)
        running["server"] = again
        began = time.monotonic()
        async with ServerPool(second, key, spec=SMALL) as pool:
            lease = await pool.lease()
            row.demand(lease.epoch > 2, f"epochs began anew: {lease.epoch}")
            await lease.desktop.observe()
            row.steps += 1
        row.recovery_s.append(time.monotonic() - began)
        left = [child.pid for child in psutil.Process(again.pid).children(recursive=True)]
        again.send_signal(signal.SIGTERM)
        await asyncio.to_thread(again.wait)
        await _gone(row, left, "a server that was ended")
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _started(command: list[str], environment: dict[str, str], log: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server and return it with its URL; stderr goes to `log`."""
    with log.open("a") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    if " at " not in line:
        raise RuntimeError(f"{' '.join(command[1:4])} did not start: {log.read_text()[-500:]}")
    return process, line.split(" at ")[1].split(",")[0]


async def _until_free(row: Row, address: str, key: str, began: float) -> None:
    """Check that the leases of a dead trainer are released within a minute."""
    async with httpx2.AsyncClient(base_url=address, headers={"authorization": f"Bearer {key}"}) as http:
        while (await http.get("/leases")).json()["leases"]:
            if time.monotonic() - began > 60:
                row.wrong.append("leases of a killed trainer are out after a minute")
                return
            await asyncio.sleep(0.1)
    row.recovery_s.append(time.monotonic() - began)


async def row_9(size: float, folder: Path) -> Row:
    """Truncated, black or resized screens, and deltas of unknown frames."""
    from fake_osworld import FakeOsworld

    row = Row(9, "truncated, black, stale, wrong-size frame")
    fake = FakeOsworld(folder / "frames", (64, 48))
    desktop = OsworldDesktop(
        RetryingClient("http://vm.test", timeouts=QUICK, transport=httpx2.ASGITransport(app=fake.app)),
        skip_reset=True,
        polling=screenshots.ScreenPolling(0, 0, 1),
    )
    await desktop.reset(SCREEN)
    whole = fake.guest.picture()
    larger = FakeOsworld(folder / "larger", (128, 96)).guest.picture()
    chance = random.Random(9)
    for number in range(scaled(size, 60, 2000)):
        cut = (
            chance.randrange(len(whole)) if number % 20 else len(whole) - 1 - number % 19
        )  # often where the pixels are all there
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        data = (whole[:cut], larger, b"", b"\x89PNG\r\n\x1a\n" + b"\0" * cut, bytes(flipped))[number % 5]
        fake.guest.picture = lambda data=data: data  # type: ignore[method-assign]
        row.injected += 1
        try:
            await desktop.observe()
            row.wrong.append(
                f"a broken screen became a frame: {('cut', 'larger', 'empty', 'zeros', 'a bit')[number % 5]}"
            )
        except FrameError:
            row.survived += 1
    row.wrong = row.wrong[:3]
    async with faulty_server(1, Faults()) as (pool, _, _, _):
        frame = await (await pool.lease()).desktop.observe()
        header, body = frame_codec.encode_frame(frame, None)
        for broken in ((header, body[:-4]), (header.replace("64", "63", 1), body), (header[:-9], body), ("", body)):
            row.injected += 1
            try:
                frame_codec.decode_frame(*broken, None)
                row.wrong.append("a broken frame was taken")
            except FrameError:
                row.survived += 1
    return row


async def row_10(size: float, folder: Path) -> Row:
    """File writes fail (ENOSPC, EMFILE, inodes) during setup and evaluation."""
    row = Row(10, "ENOSPC, EMFILE, inode exhaustion")
    for number in (errno.ENOSPC, errno.EMFILE, errno.EDQUOT):
        async with faulty_server(4, Faults()) as (pool, made, _, _):
            source = CountedEpisodes(pool, scaled(size, 8, 100), 3)
            lease, failing = pool.lease, {"left": 3}

            async def broken(
                spec: Any = None, lease: Any = lease, number: int = number, failing: Any = failing, made: Any = made
            ) -> Any:
                found = await lease(spec)
                if failing["left"]:
                    failing["left"] -= 1
                    row.injected += 1

                    async def push(path: str, data: bytes) -> None:
                        raise OSError(number, os.strerror(number), path)

                    made[-1].push = push
                return found

            pool.lease = broken  # type: ignore[method-assign]
            await source.run(1)
            source.into(row)
            lost = [result.outcome for result in source.results if isinstance(result.outcome, Errored)]
            row.demand(len(lost) == 3, f"{len(lost)} episodes ended unscored by 3 full disks")
            row.survived += len(lost)
    return row


async def row_11(size: float, folder: Path) -> Row:
    """Evaluators that raise, hang, return no number, or print endlessly."""
    row = Row(11, "evaluator raises / hangs / NaN / 40 MB stdout")

    async def raises(desktop: Any) -> CheckResult:
        raise ZeroDivisionError("boom")

    async def hangs(desktop: Any) -> CheckResult:
        await asyncio.sleep(60)
        return CheckResult(1.0)

    async def no_number(desktop: Any) -> CheckResult:
        return CheckResult(float("nan"))

    async def drowns(desktop: Any) -> CheckResult:
        done = await desktop.run(["sh", "-c", "head -c 40000000 /dev/zero"], timeout_s=20)
        return CheckResult(float(len(done.stdout) <= 32 << 20))

    embedded = LocalDesktop()
    await embedded.reset(SMALL)
    for check, cause in ((raises, "evaluator"), (hangs, "evaluator"), (no_number, "evaluator"), (drowns, None)):
        for _ in range(scaled(size, 1, 20) if check is not hangs else 1):
            began = time.monotonic()
            outcome = await judge(
                pointing_task(0, 1, check), embedded, timeout_s=10.0 if check is drowns else 0.5, grace_s=0
            )
            row.injected += 1
            if cause is None:
                fine = isinstance(outcome, Scored) and outcome.value == 1.0
                fine = fine or isinstance(outcome, Errored)
            else:
                fine = isinstance(outcome, Errored) and outcome.cause == cause
            row.unscored += isinstance(outcome, Errored)
            row.survived += fine
            row.demand(fine, f"{check.__name__}: {outcome}")
            row.demand(time.monotonic() - began < 15, f"{check.__name__} took {time.monotonic() - began:.1f} s")
    await embedded.close()
    return row


async def row_12(size: float, folder: Path) -> Row:
    """32 sibling episodes are evaluated concurrently and sequentially."""
    row = Row(12, "32 sibling rollouts score at once")

    async def check(desktop: Any) -> CheckResult:
        number = int((await desktop.pull("task.txt")).decode())
        await asyncio.sleep(0)
        return CheckResult((number % 7) / 7)

    async with faulty_server(32, Faults()) as (pool, _, _, _):
        leases = [await pool.lease() for _ in range(32)]
        for _ in range(scaled(size, 1, 10)):
            tasks = [pointing_task(number, 1, check) for number in range(32)]
            for task, lease in zip(tasks, leases, strict=True):
                await task.setup(lease.desktop)
            pairs = list(zip(tasks, leases, strict=True))
            at_once = await asyncio.gather(*(judge(task, lease.desktop, grace_s=0) for task, lease in pairs))
            serial = [await judge(task, lease.desktop, grace_s=0) for task, lease in pairs]
            row.steps += 32
            row.injected += 32
            row.survived += sum(a == b for a, b in zip(at_once, serial, strict=True))
            row.demand(at_once == serial, "rewards differ from those of serial scoring")
    return row


async def row_15(size: float, folder: Path) -> Row:
    """Guest that kills processes, writes endlessly, forks, and replaces its result with a symlink."""
    row = Row(15, "malicious guest: kill, flood, fork, link")
    marker = folder / "host-secret"
    marker.write_text("of the host")
    tricks = [
        ["sh", "-c", "kill -9 -1; for p in /proc/[0-9]*; do kill -9 ${p#/proc/} 2>/dev/null; done; true"],
        ["sh", "-c", "head -c 10000000000 /dev/zero"],
        ["sh", "-c", "b() { b | b & }; b"],
        ["sh", "-c", f"ln -sf {marker} result.txt; ln -sf / all"],
    ]
    if guests_can_kill_this_user(available_isolation()[0]):
        row.note = "without the first: guests could kill this user's processes"
        tricks.pop(0)
    for trick in tricks:
        desktop = LocalDesktop(crashes_fail=False)
        await desktop.reset(SMALL)
        row.injected += 1
        began = time.monotonic()
        try:
            done = await desktop.run(trick, timeout_s=3)
            row.demand(len(done.stdout) <= 64 << 20, f"{len(done.stdout)} bytes of output came through")
        except InfrastructureError:
            row.unscored += 1
        for path in ("result.txt", "all/etc/hostname"):
            try:
                data = await desktop.pull(path)
                row.demand(b"of the host" not in data, "a link led out of the home")
            except (OSError, InfrastructureError):
                pass
        pids = desktop.processes()
        await desktop.close()
        await _gone(row, pids, trick[2][:20])
        row.recovery_s.append(time.monotonic() - began)
        row.survived += 1
    row.demand(marker.read_text() == "of the host", "the host's file was changed")
    return row
