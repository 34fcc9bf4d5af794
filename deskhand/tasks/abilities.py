"""The fixed list of abilities that task families exercise; `Family.abilities` names those of each.

Used by the suites, by `deskhand tasks list` and `deskhand tasks stats`, and by the table in docs/tasks.md.
"""

from __future__ import annotations

from typing import Literal, get_args

Ability = Literal[
    "choose among windows",
    "use menus and dialogs",
    "use the keyboard",
    "edit text",
    "format a document",
    "work on a table",
    "edit a picture",
    "manage files",
    "use a shell",
    "browse pages",
    "browse a web application",
    "fill in a form",
    "find something",
    "read and compare",
    "scroll",
    "work in several steps",
    "carry data between programs",
    "answer a question",
    "recognize an infeasible task",
]
ABILITIES: tuple[Ability, ...] = get_args(Ability)
