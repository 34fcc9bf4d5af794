"""The programs that act on OSWorld's machines, run by a real PyAutoGUI on a real X server: any text arrives as it is,
and a program that is sent again does nothing more."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from patience import limit

from benchmarks.osworld.vm_client_recipe import _authority
from deskhand.actions.ops import Click, Drag, Key, Move, Point, Scroll, Type, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.remote import guest_scripts

ROOT = Path(__file__).parents[3]
PYTHON = "/usr/bin/python3"
TEXT = "plain <b> 'q\"\\n' ünï – 中文 é€ß\nlast~\n"


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python with PyAutoGUI, which needs Debian's tkinter."""
    if (
        not os.path.exists(PYTHON)
        or subprocess.run([PYTHON, "-c", "import tkinter"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{PYTHON} has no tkinter, which PyAutoGUI imports (apt-get install python3-tk)")
    command = ["bash", "scripts/environment", "osworld-recipe"]
    made = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHON": PYTHON}, capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"PyAutoGUI cannot be installed: {made.stderr.strip().splitlines()[-1]}")
    return Path(made.stdout.strip()) / "bin" / "python"


async def test_any_text_and_gesture_arrives_by_a_real_pyautogui(python, tmp_path):
    desktop = LocalDesktop()
    await desktop.reset(DesktopSpec("plain", 400, 300))
    try:
        assert desktop._session is not None
        authority = tmp_path / "authority"
        authority.write_bytes(_authority(desktop._session.x_server))
        environment = {
            "DISPLAY": desktop._session.x_server.name, "XAUTHORITY": str(authority), "PATH": os.environ["PATH"],
            "HOME": str(tmp_path), "TMPDIR": str(tmp_path),
        }  # fmt: skip

        async def run(program: str) -> str:
            done = await asyncio.to_thread(
                subprocess.run,
                [str(python), "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit(60),
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        def at(x: int, y: int) -> Point:
            return Point(x, y, screen_px(400, 300))

        await desktop.launch(["xterm", "-geometry", "60x18+0+0", "-e", "sh", "-c", "cat > typed.txt"])
        await desktop.wait_window("xterm")
        await desktop.observe()
        typing = guest_scripts.with_marker(
            guest_scripts.action_script([Move(at(60, 60)), Type(TEXT)], 400, 300, "linux"), "one", wait_s=5
        )
        assert await run(typing) == "deskhand done"
        assert await run(typing) == "deskhand done", "sent again, it says the same and types nothing"
        ops = [Scroll(0, 2, at(50, 50)), Drag((at(10, 10), at(90, 80))), Click(at(60, 60)), Key(("ctrl", "d"))]
        ending = guest_scripts.with_marker(
            guest_scripts.action_script(ops, 400, 300, "linux"), "two", wait_s=5, old=["one"]
        )
        assert await run(ending) == "deskhand done"
        for _ in range(round(limit(100))):
            if (await desktop.pull("typed.txt")).decode() == TEXT:
                break
            await asyncio.sleep(0.05)
        assert (await desktop.pull("typed.txt")).decode() == TEXT
        assert (await desktop.observe()).cursor == (60, 60)
        assert not (tmp_path / "deskhand-one").exists()
        wrong = guest_scripts.with_marker("raise ValueError('no')", "three", wait_s=1)
        assert (await run(wrong)).startswith("deskhand failed 0 ")
        said = await run(
            guest_scripts.with_marker(
                guest_scripts.run_script(["sh", "-c", "echo x; exit 3"], 5, None, None), "four", wait_s=5
            )
        )
        assert said == 'deskhand done [3, "eAo=", ""]'
    finally:
        await desktop.close()
