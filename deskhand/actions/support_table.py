"""Markdown table of the ops that each action format supports; used by the CLI and `docs/actions.md`."""

from __future__ import annotations

from typing import get_args

from deskhand.actions import formats
from deskhand.actions.ops import Op
from deskhand.actions.serialization import name_of

SIGNS = {"lossless": "✓", "lossy": "~", "absent": "–"}


def support_table() -> str:
    """Return a table of ops by format, followed by the restrictions and losses."""
    kinds = get_args(Op)
    lines = ["| Format | " + " | ".join(f"`{name_of(kind)}`" for kind in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    notes: dict[tuple[str, str, str], list[str]] = {}
    for name in formats.available_formats():
        supported_ops = formats.get(name).supported_ops
        lines.append(f"| `{name}` | " + " | ".join(SIGNS[supported_ops[kind].kind] for kind in kinds) + " |")
        for kind in kinds:
            if supported_ops[kind].how:
                notes.setdefault((name_of(kind), SIGNS[supported_ops[kind].kind], supported_ops[kind].how), []).append(
                    f"`{name}`"
                )
    order = [name_of(kind) for kind in kinds]
    rows = sorted(notes.items(), key=lambda item: order.index(item[0][0]))
    restrictions = [f"| `{op}` | {sign} | {_cell(how)} | {', '.join(names)} |" for (op, sign, how), names in rows]
    header = ["| Op | | Restriction or loss | Formats |", "|---|---|---|---|"]
    return "\n".join(
        [
            *lines,
            "",
            "Restrictions of supported ops (✓), losses (~), and substitutes for unsupported ops (–):",
            "",
            *header,
            *restrictions,
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
