"""What the prompts of dialects offer, as replies of a model that takes the prompt at its word."""

from __future__ import annotations

import re
from typing import Any

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.json_format import JsonActionFormat

_WORD = re.compile(r"\b(?:WAIT|DONE|FAIL)\b")


def offers(dialect: Any, view: ScreenView) -> list[str]:
    """A reply for each action that the prompt shows; where it has a choice (`x1`, "down or up", a name of several), with a choice
    made, of names with each."""
    return _of_objects(dialect, view) if isinstance(dialect, JsonActionFormat) else _of_calls(dialect, view)


def _of_objects(dialect: JsonActionFormat, view: ScreenView) -> list[str]:
    prompt, found = dialect.prompt(view), []
    for form in dialect.forms(view):
        if form.offered:
            assert form.name in prompt, f"{dialect.name}: {form.name} is not in the prompt"
            shown = form.shown
            choices = [shown] + [
                shown | {key: name} for key, rule in form.keys.items() for name in rule.get("enum", ())
            ]
            found += [dialect.reply([dialect.action(form.name, values)]) for values in choices]
    if dialect.ends_by_words:
        found += [dialect.written(dialect.words(text)) for text in ("", "what you found", "[INFEASIBLE] why")]
    return found


def _of_calls(dialect: CallActionFormat, view: ScreenView) -> list[str]:
    prompt, space, found = dialect.prompt(view), dialect.space(view), []
    for row in dialect.rows:
        shown = "\n".join(dialect.write(row.example, space)) if row.example is not None else row.offer
        assert shown in prompt, f"{dialect.name}: {shown} is not in the prompt"
        if shown:
            code = re.sub(r"\b[xy]([12])\b", r"\1", shown)
            if "if any" in row.about:
                found.append(f"{row.call}()")
            found += [code.replace("down or up or right or left", way) for way in ("down", "up", "right", "left")]
    found = list(dict.fromkeys(found))
    if dialect.name.startswith(("uitars", "openadapt")):
        return [f"Thought: so\nAction: {code}" for code in found]
    words = dict.fromkeys(_WORD.findall(prompt)) if dialect.name == "waa_navi" else {}
    return [*(f"```python\n{code}\n```" for code in found), *(f"```decision\n{word}\n```" for word in words)]
