"""Programs that count the input which reaches them, one for each toolkit. Used by `benchmarks.input_delivery`.

A client has twelve buttons `b0` to `b11` and two text fields `e0` and `e1`, and records each mouse press and release,
key press, click of a button and text of a field. LibreOffice Calc has cells instead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from deskhand.actions.ops import Point, screen_px
from deskhand.desktop.applications.catalog import get_profile
from deskhand.desktop.base import DesktopSpec, Window
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import chromium
from deskhand.tasks.suites.basics.office_files import workbook

SPEC = DesktopSpec("plain", 800, 600)
SPACE = screen_px(SPEC.width, SPEC.height)
FOLDER = Path(__file__).parent
PACKAGES = {
    "Chromium": "chromium",
    "GTK 3": "python3-gi gir1.2-gtk-3.0",
    "GTK 4": "python3-gi gir1.2-gtk-4.0",
    "Qt": "python3-pyside2.qtwidgets",
    "LibreOffice": "libreoffice-calc libreoffice-gtk3 python3-uno",
}
"""Debian packages of each toolkit's client."""
_CHECKS = {
    "GTK 3": "import gi; gi.require_version('Gtk', '3.0')",
    "GTK 4": "import gi; gi.require_version('Gtk', '4.0')",
    "Qt": "import PySide2.QtWidgets",
    "Chromium": "import shutil; assert shutil.which('chromium')",
    "LibreOffice": "import shutil, uno; assert shutil.which('soffice')",
}
START_TIMEOUT_S = 180.0
OTHER_WINDOW = Point(700, 500, SPACE)
"""A point in the terminal that takes the focus from the client."""


async def is_installed(desktop: LocalDesktop, toolkit: str) -> bool:
    return (await desktop.run(["python3", "-c", _CHECKS[toolkit]], timeout_s=60)).returncode == 0


@dataclass
class Client:
    """A running client. `points` are the centers of its widgets."""

    desktop: LocalDesktop
    toolkit: str
    points: dict[str, Point] = field(default_factory=dict)
    _read: int = 0

    async def start(self) -> None:
        """Start the client, and a terminal that records its input at the bottom right; LibreOffice covers it."""
        desktop, deadline = self.desktop, time.monotonic() + START_TIMEOUT_S
        script = "stty raw -echo; exec cat > heard"
        await desktop.launch(["xterm", "-geometry", "16x6+660+470", "-e", "sh", "-c", script])
        await desktop.wait_window("xterm")
        if self.toolkit == "Chromium":
            await desktop.push("page.html", (FOLDER / "page.html").read_bytes())
            page = await chromium.start(desktop, "page.html")
            (window,) = await desktop.wait_window("chromium")
            await desktop.place_window(window, 0, 24, 640, 420)
            previous, boxes, x, y = None, {}, 0, 0
            while boxes != previous or not boxes:  # the page learns late where its window is
                previous = boxes
                await desktop.observe()
                await asyncio.sleep(0.5)
                boxes = await page.evaluate("boxes()")
        else:
            window = await self._start_program()
            while not (lines := await self._lines()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.toolkit}: the client has not said where its widgets are")
                await asyncio.sleep(0.1)
            boxes, x, y = json.loads(lines[0])["boxes"], window.x, window.y
            if self.toolkit == "LibreOffice":
                y += window.height
        await desktop.observe()
        for name, (left, top, width, height) in boxes.items():
            self.points[name] = Point(round(x + left + width / 2), round(y + top + height / 2), SPACE)

    async def _start_program(self) -> Window:
        desktop = self.desktop
        if self.toolkit == "LibreOffice":
            await desktop.push("numbers.xlsx", workbook({"Numbers": [["first"]]}))
            await desktop.launch([*get_profile("calc").argv, "--accept=pipe,name=count;urp;", "numbers.xlsx"])
            (window,) = await desktop.wait_window("libreoffice-calc", timeout_s=START_TIMEOUT_S)
            await desktop.push("calc_client", (FOLDER / "calc_client").read_bytes())
            await desktop.launch(["python3", "calc_client"])
            return window
        name = "qt_client" if self.toolkit == "Qt" else "gtk_client"
        await desktop.push(name, (FOLDER / name).read_bytes())
        await desktop.launch(["python3", name, self.toolkit[-1]])
        (window,) = await desktop.wait_window("client", timeout_s=START_TIMEOUT_S)
        return await desktop.place_window(window, 4, 30)

    def clicks(self, name: str, count: int = 1) -> Counter[str]:
        """Return the records of clicks on a widget."""
        found = Counter({"press": count})
        found.update({"release": count} if self.toolkit != "GTK 4" else {})
        found.update({f"click {name}": count} if name.startswith("b") else {})
        return found

    async def _lines(self) -> list[str]:
        try:
            text = (await self.desktop.pull("events")).decode()
        except FileNotFoundError:
            return []
        return text[: text.rfind("\n") + 1].splitlines()

    async def take(self) -> list[str]:
        """Return what was recorded since the last call."""
        if self.toolkit == "Chromium":
            return await chromium.session_of(self.desktop).evaluate("log.splice(0)")
        lines = await self._lines()
        fresh, self._read = lines[self._read :], len(lines)
        return [entry for line in fresh if isinstance(entry := json.loads(line), str)]

    async def heard(self) -> int:
        """Return how many bytes the terminal has received."""
        return len(await self.desktop.pull("heard"))
