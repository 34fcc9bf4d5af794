"""Which dialect carries which op, as Markdown. Invariant: it is what the dialects themselves say in `carries`."""

from __future__ import annotations

from typing import get_args

from deskhand.actions import dialects
from deskhand.actions.ops import Op
from deskhand.actions.plain import name_of

SIGNS = {"lossless": "✓", "lossy": "~", "absent": "–"}


def table() -> str:
    """Ops x dialects, then what is not carried whole."""
    kinds = get_args(Op)
    lines = ["| Dialect | " + " | ".join(f"`{name_of(kind)}`" for kind in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    notes = ["| Dialect | Op | | What it carries |", "|---|---|---|---|"]
    for name in dialects.names():
        carries = dialects.get(name).carries
        lines.append(f"| `{name}` | " + " | ".join(SIGNS[carries[kind].kind] for kind in kinds) + " |")
        notes += [
            f"| `{name}` | `{name_of(kind)}` | {SIGNS[carries[kind].kind]} | {_cell(carries[kind].how)} |"
            for kind in kinds
            if carries[kind].how
        ]
    return "\n".join([*lines, "", "What is carried with bounds (✓), with losses (~), or otherwise (–):", "", *notes])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
