"""Markdown table of the ops that each action format supports; used by the CLI and `docs/actions.md`."""

from __future__ import annotations

from deskhand.actions import formats
from deskhand.actions.serialization import OPS

SIGNS = {"lossless": "✓", "lossy": "~", "absent": "–"}


def support_data() -> dict[str, dict[str, dict[str, str]]]:
    """Return the support of every op by format: its kind, and the restriction, loss or substitute."""
    found = {name: formats.get(name).supported_ops for name in formats.available_formats()}
    return {
        name: {op: {"support": known[kind].kind, "how": known[kind].how} for op, kind in OPS.items()}
        for name, known in found.items()
    }


def support_table() -> str:
    """Return a table of ops by format, followed by the restrictions and losses."""
    lines = ["| Format | " + " | ".join(f"`{op}`" for op in OPS) + " |", "|---" * (len(OPS) + 1) + "|"]
    notes: dict[str, dict[tuple[str, str], list[str]]] = {op: {} for op in OPS}
    for name in formats.available_formats():
        support = formats.get(name).supported_ops
        lines.append(f"| `{name}` | " + " | ".join(SIGNS[support[kind].kind] for kind in OPS.values()) + " |")
        for op, kind in OPS.items():
            if support[kind].how:
                notes[op].setdefault((SIGNS[support[kind].kind], support[kind].how), []).append(f"`{name}`")
    lines += ["", "Restrictions of supported ops (✓), losses (~), and substitutes for unsupported ops (–):", ""]
    lines += ["| Op | | Restriction or loss | Formats |", "|---|---|---|---|"]
    for op, found in notes.items():
        for (sign, how), names in found.items():
            how = how.replace("|", "\\|")
            lines.append(f"| `{op}` | {sign} | {how} | {', '.join(names)} |")
    return "\n".join(lines)
