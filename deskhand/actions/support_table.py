"""Which dialect carries which op, as Markdown. Invariant: it is what the dialects themselves say in `carries`."""

from __future__ import annotations

from typing import get_args

from deskhand.actions import formats
from deskhand.actions.ops import Op
from deskhand.actions.serialization import name_of

SIGNS = {"lossless": "✓", "lossy": "~", "absent": "–"}


def support_table() -> str:
    """Ops x dialects, then what is not carried whole."""
    kinds = get_args(Op)
    lines = [
        "| Dialect | " + " | ".join(f"`{name_of(kind)}`" for kind in kinds) + " |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    notes: dict[tuple[str, str, str], list[str]] = {}
    for name in formats.available_formats():
        carries = formats.get(name).supported_ops
        lines.append(f"| `{name}` | " + " | ".join(SIGNS[carries[kind].kind] for kind in kinds) + " |")
        for kind in kinds:
            if carries[kind].how:
                notes.setdefault((name_of(kind), SIGNS[carries[kind].kind], carries[kind].how), []).append(f"`{name}`")
    order = [name_of(kind) for kind in kinds]
    rows = sorted(notes.items(), key=lambda item: order.index(item[0][0]))
    said = [f"| `{op}` | {sign} | {_cell(how)} | {', '.join(names)} |" for (op, sign, how), names in rows]
    heads = ["| Op | | What is carried, or lost | Dialects |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, "", "What is carried within bounds (✓), with losses (~), or otherwise (–):", "", *heads, *said]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
