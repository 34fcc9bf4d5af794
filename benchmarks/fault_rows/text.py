"""Row 16: hostile model text."""

from __future__ import annotations

import os
import random
from pathlib import Path

from benchmarks.fault_rows.parts import Row, scaled
from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.errors import ParseError


async def row_16(size: float, folder: Path) -> Row:
    """Hostile model text in every format: ops or a `ParseError`, and nothing is executed."""
    row = Row(16, "model text fuzz, every format")
    chance, mark = random.Random(16), folder / "ran"
    pieces = [
        "'''", '"""', "\\", "{", "}", "(", "click", "type(", "42", "\x00", "🙂", "\u202e", "</tool_call>", "```",
        "import os", "\n", "Action:", "x" * 5000, f"__import__('os').system('touch {mark}')", "DONE", "wait()", ")",
        ",", "start_box=", "\ud800",
    ]  # fmt: skip
    view = ScreenView.of_screen(1280, 720)
    for name in formats.available_formats():
        action_format = formats.get(name)
        for _ in range(scaled(size, 40, 1000)):
            text = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14)))
            row.injected += 1
            try:
                action_format.parse(text, view)
                row.survived += 1
            except ParseError:
                row.survived += 1
            except Exception as error:
                row.wrong.append(f"{name}: {type(error).__name__} {error}")
    row.demand(not os.path.exists(mark), "text was run")  # noqa: ASYNC240
    row.wrong = row.wrong[:3]
    return row
