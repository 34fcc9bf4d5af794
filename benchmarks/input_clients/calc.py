"""LibreOffice Calc as a client: numbers are typed into clicked cells, and the saved file shows what arrived."""

from __future__ import annotations

import asyncio
import io
import time
from zipfile import BadZipFile

import openpyxl

from benchmarks.input_clients import SPACE
from deskhand.actions.ops import Key, Point
from deskhand.desktop.applications.catalog import get_profile
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks.suites.basics.office_files import workbook

FILE = "numbers.xlsx"
COLUMNS, ROWS = 4, 9
"""The sidebar covers what is right of them, and Enter in the last row must not scroll."""
_COLUMN_PX, _ROW_PX = 120, 22  # more than a cell (a row of an XLSX file has 15 pt, 20 px), so no two are in one
_FIRST_PX = (110, 250)
SAVE_TIMEOUT_S = 60.0


class Calc:
    """An open workbook. `points` are in different cells."""

    def __init__(self, desktop: LocalDesktop) -> None:
        self.desktop = desktop
        self.points = [
            Point(_FIRST_PX[0] + _COLUMN_PX * column, _FIRST_PX[1] + _ROW_PX * row, SPACE)
            for row in range(ROWS)
            for column in range(COLUMNS)
        ]
        self._cells: dict[int, tuple[int, int]] = {}
        """The cell of each point, as the first pass found it."""
        self._saves = 0

    async def start(self) -> None:
        await self.desktop.push(FILE, workbook({"Numbers": [["first"]]}))
        await self.desktop.launch([*get_profile("calc").argv, FILE])
        await self.desktop.wait_window("libreoffice-calc", timeout_s=120)
        for _ in range(20):
            frame = await self.desktop.observe()
            if frame.settle_reason != "cap" and frame.settle_ms == 0:
                break

    async def missing(self, expected: dict[int, int]) -> int:
        """Save, and return how many numbers are not where they were typed; `expected` is by index of the point."""
        deadline = time.monotonic() + SAVE_TIMEOUT_S
        wanted = set(expected.values())
        cells: dict[int, tuple[int, int]] = {}
        while time.monotonic() < deadline:
            self._saves += 1
            await self.desktop.perform([Key(("ctrl", "s"))], action_id=f"save {self._saves}")
            await asyncio.sleep(1.0)
            cells = await self._saved()
            if wanted <= cells.keys():
                break
        lost = 0
        for index, number in expected.items():
            place = cells.get(number)
            if place is None or self._cells.setdefault(index, place) != place:
                lost += 1
        return lost + (len(set(self._cells.values())) != len(self._cells))

    async def _saved(self) -> dict[int, tuple[int, int]]:
        """Return the cell of each number in the file."""
        try:
            book = openpyxl.load_workbook(io.BytesIO(await self.desktop.pull(FILE)))
        except (BadZipFile, KeyError):  # the application is writing it
            return {}
        rows = book.active.iter_rows()
        return {cell.value: (cell.row, cell.column) for row in rows for cell in row if isinstance(cell.value, int)}
