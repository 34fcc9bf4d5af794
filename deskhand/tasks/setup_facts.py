"""Facts about a desktop that a task's set-up notes for its check.

Used by families whose check must know what set-up made, such as which window and program is the red terminal: guests
change titles and other properties, but not these notes. `tasks.end_state` saves them with the end state.
"""

from __future__ import annotations

import weakref
from typing import Any

from deskhand.desktop.base import HasProgramList
from deskhand.errors import EvaluatorError

_noted: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def note(desktop: Any, name: str, value: Any) -> None:
    """Note a fact (JSON types) about a desktop, in place of an earlier one of this name."""
    _noted.setdefault(desktop, {})[name] = value


def all_noted(desktop: Any) -> dict[str, Any]:
    """Return the facts of a desktop by name; those of a saved end state are its attribute `setup_facts`."""
    saved = getattr(desktop, "setup_facts", None)
    return saved if isinstance(saved, dict) else dict(_noted.get(desktop, {}))


def noted(desktop: Any, name: str) -> Any:
    """Return a fact. Raises `EvaluatorError` if set-up did not run on this desktop."""
    facts = all_noted(desktop)
    if name not in facts:
        raise EvaluatorError(f"{name}: not noted for this desktop; run the set-up of the task first")
    return facts[name]


async def exit_code(desktop: Any, name: str) -> tuple[bool, int | None]:
    """Return whether the host sees the end of a program, of which a fact is the id, and its exit code: None while it
    runs.
    """
    program = all_noted(desktop).get(name)
    if not program or not isinstance(desktop, HasProgramList):
        return False, None
    return True, (await desktop.exit_codes()).get(program)
