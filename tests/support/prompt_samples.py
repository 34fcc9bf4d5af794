"""What the prompts of action formats offer, as replies of a model that takes the prompt at its word."""

from __future__ import annotations

import re
from typing import Any

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.json_format import JsonActionFormat

_WORD = re.compile(r"\b(?:WAIT|DONE|FAIL)\b")


def offers(action_format: Any, view: ScreenView) -> list[str]:
    """A reply for each action that the prompt shows; where it has a choice (`x1`, "down or up", a name of several),
    with a choice made, of names with each."""
    return (
        _of_objects(action_format, view)
        if isinstance(action_format, JsonActionFormat)
        else _of_calls(action_format, view)
    )


def _of_objects(action_format: JsonActionFormat, view: ScreenView) -> list[str]:
    prompt, found = action_format.prompt(view), []
    for json_action in action_format.json_actions(view):
        if json_action.offered:
            assert json_action.name in prompt, f"{action_format.name}: {json_action.name} is not in the prompt"
            shown = json_action.shown
            choices = [shown] + [
                shown | {key: name} for key, rule in json_action.keys.items() for name in rule.get("enum", ())
            ]
            found += [action_format.reply([action_format.action(json_action.name, values)]) for values in choices]
    if action_format.name.startswith("holo"):
        found.append(action_format.reply([action_format.action("answer", {"content": ""})]))
    if action_format.name == "fara":
        found.append(f"It is 42.\n{action_format.reply([action_format.action('terminate', {'status': 'success'})])}")
    if action_format.ends_with_text:
        found += [
            action_format.dumps(action_format.text_value(text)) for text in ("", "what you found", "[INFEASIBLE] why")
        ]
    return found


def _of_calls(action_format: CallActionFormat, view: ScreenView) -> list[str]:
    prompt, space, found = action_format.prompt(view), action_format.space(view), []
    for spec in action_format.specs:
        shown = "\n".join(action_format.write(spec.example, space)) if spec.example is not None else spec.offer
        assert shown in prompt, f"{action_format.name}: {shown} is not in the prompt"
        if shown:
            code = re.sub(r"\b[xy]([12])\b", r"\1", shown)
            if "if any" in spec.about:
                found.append(f"{spec.call}()")
            found += [code.replace("down or up or right or left", way) for way in ("down", "up", "right", "left")]
    found = list(dict.fromkeys(found))
    if action_format.name in ("glm_v", "scalecua"):
        return [action_format.layout([code], []) for code in found]
    if action_format.name.startswith(("uitars", "openadapt")):
        return [f"Thought: so\nAction: {code}" for code in found]
    words = dict.fromkeys(_WORD.findall(prompt)) if action_format.name == "waa_navi" else {}
    return [*(f"```python\n{code}\n```" for code in found), *(f"```decision\n{word}\n```" for word in words)]
