"""What models read of action formats: prompts, JSON schemas, why replies are refused, and how actions are written."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from deskhand.actions import conformance, formats
from deskhand.actions.formats.base import ScreenView
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import AgentError, ParseError
from deskhand.recorder.messages import ToolCall
from deskhand.recorder.tool_formats import FORMATS

SIZES = {
    "1000x1000": (1000, 1000, 1000, 1000, None),
    "1920x1080": (1920, 1080, 1920, 1080, None),
    "1920x1080 shown as 1366x768": (1920, 1080, 1366, 768, None),
    "1280x720 seen as 1288x728": (1280, 720, 1280, 720, (1288, 728)),
    "256x192": (256, 192, 256, 192, None),
    "3840x2160": (3840, 2160, 3840, 2160, None),
}
"""Screen width and height, image width and height, and the size that the model's own preprocessing makes of it."""
NO_ACTIONS = (
    "", " ", "\n", "I wonder.", "done", "DONE", "null", "true", "0", "[]", "{}", "[[]]", '""', '"click"', "[1, 2]",
    "{", "}", "[", "```", "```\n```", "```python\n```", "```python\n", "```json\n{}\n```", "<tool_call>",
    "<tool_call></tool_call>", "<tool_call>\n{}\n</tool_call>", "<think>", "<think>so</think>", "</think>",
    "<answer></answer>", "Action:", "Action: ", "Thought: so", "Thought: so\nAction:", "Thought: so\nAction: fly()",
    "Thought: so\nAction: click(", "click", "click()", "click(1)", "click(1, 2, 3, 4, 5, 6, 7)", "click(x=1)",
    "click(x='a', y='b')", "click(1, 2); click(3, 4", "fly(1, 2)", "import os", "__import__('os').system('ls')",
    "pyautogui.fly(1)", "pyautogui.click(", "pyautogui.click(1e400, 2)", "pyautogui.write(5)", "pyautogui.hotkey()",
    "pyautogui.press('nosuchkey')", "pyautogui.scroll('up')", "computer.terminate(status='maybe')", '{"op": "fly"}',
    '{"op": "click"', '{"op": "click", "x": 5}', '{"op": "click", "x": -1, "y": 2000}', '{"op": 5}', '{"op": null}',
    '{"op": "click", "x": NaN, "y": Infinity}', '{"op": "type"}', '{"op": "type", "text": 5}',
    '{"op": "key", "keys": []}', '{"op": "key", "keys": ["nosuchkey"]}', '{"op": "wait", "seconds": 1e9}',
    '{"op": "done"}{"op": "click", "x": 1, "y": 1}', '{"action": "fly"}', '{"action": "left_click"}',
    '{"action": "left_click", "coordinate": [1]}', '{"action": "key"}',
    '{"action": "left_click", "coordinate": ["a", "b"]}', '{"action": "left_click", "coordinate": [99999, 5]}',
    '{"action": "scroll", "coordinate": [1, 1], "scroll_direction": "sideways", "scroll_amount": 3}',
    '{"action": "wait"}', '{"type": "fly"}', '{"type": "click"}',
    '{"type": "click", "x": 1, "y": 1, "button": "sixth"}', '{"type": "drag", "path": []}',
    '{"name": "computer_use"}', '{"name": "computer_use", "arguments": {}}',
    '{"name": "computer_use", "arguments": "{}"}',
    '{"name": "fly", "arguments": {"action": "left_click", "coordinate": [1, 1]}}',
    '{"name": "click_at", "args": {"x": 1}}', '{"action_type": "FLY"}', '{"action_type": "CLICK", "x": "a"}',
    '{"functionCall": {}}', '{"content": {"parts": []}}', "WAIT", "FAIL", "```decision\nDONE\n```",
    "```decision\nFLY\n```", "é\u202e\U0001f642", "\x00", "\ufffd", "a" * 300, "[" * 100_000, '{"a":' * 500,
    "(" * 2000, "9" * 5000, '{"op": "type", "text": "' + "x" * 40000 + '"}', "x=1\n" * 50,
)  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[A-Za-z_]{3,}")
_QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
_WRONG_NUMBERS = ("99999", "-5", "1e400", "NaN", '"7"', "null", "[]", "0.5", "true", "123456789012345678901234567890")
_WRONG_LITERALS = ("5", "null", "[]", '""', "'nosuch'", '"surprise"', "{}", "True")
_SIGNS = "\"'{}[]()<>,:=\\`\n 0-xé"


def _at(text: str, chance: random.Random) -> int:
    return chance.randrange(len(text) + 1)


def _without_one(text: str, chance: random.Random) -> str:
    place = _at(text, chance)
    return text[:place] + text[place + 1 :]


def _with_one(text: str, chance: random.Random) -> str:
    place = _at(text, chance)
    return text[:place] + chance.choice(_SIGNS) + text[place:]


def _with_another(text: str, chance: random.Random) -> str:
    place = _at(text, chance)
    return text[:place] + chance.choice(_SIGNS) + text[place + 1 :]


def _twisted(text: str, chance: random.Random) -> str:
    place = _at(text, chance)
    return text[:place] + text[place : place + 2][::-1] + text[place + 2 :]


def _replaced(pattern: re.Pattern[str], words: tuple[str, ...]) -> Callable[[str, random.Random], str]:
    def replaced(text: str, chance: random.Random) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        one = chance.choice(found)
        return text[: one.start()] + chance.choice(words) + text[one.end() :]

    return replaced


def _without_a_line(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    del lines[chance.randrange(len(lines))]
    return "\n".join(lines)


CORRUPTIONS: dict[str, Callable[[str, random.Random], str]] = {
    "cut": lambda text, chance: text[: _at(text, chance)],
    "a character missing": _without_one,
    "a character more": _with_one,
    "another character": _with_another,
    "characters swapped": _twisted,
    "another number": _replaced(_NUMBER, _WRONG_NUMBERS),
    "another word": _replaced(_WORD, ("surprise", "x", "click", "text")),
    "another literal": _replaced(_QUOTED, _WRONG_LITERALS),
    "a line missing": _without_a_line,
    "twice": lambda text, _: f"{text}\n{text}",
    "words before": lambda text, _: f"I will do this: {text}",
    "words after": lambda text, _: f"{text}\nThat is all.",
}
"""What is made of a good reply, with the random numbers of its seed."""
TIMES = 4
"""How often each is done to each reply of the corpus."""
_OURS = "unexpected indentation|it holds a null|nested too deeply|a code fence"
_SYNTAX = re.compile(rf"(not (?:Python|JSON): )(?!{_OURS}).*", re.DOTALL)
"""What follows are the words of Python itself, which differ from one release to the next."""


def outcome(name: str, text: str, view: ScreenView) -> str:
    """Why a reply is refused, in the words that the model is told, or how its own format writes what it means."""
    action_format = formats.get(name)
    try:
        found = action_format.parse(text, view)
    except ParseError as error:
        return "refused: " + _SYNTAX.sub(r"\1(in Python's words)", error.reason)
    try:
        return f"means: {action_format.emit(found, view)}"
    except AgentError:
        return "means what this format cannot write"


def format_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of prompts, schemas, and what becomes of replies, for every action format."""
    corpus = {name: conformance.load_cases(name) for name in formats.available_formats()}
    for name in formats.available_formats():
        top, action_format = f"format/{name}", formats.get(name)
        for size, sides in SIZES.items():
            view = ScreenView(*sides)
            yield f"{top}/prompt/{size}", action_format.prompt(view)
            schema = action_format.schema(view)
            yield f"{top}/schema/{size}", "none" if schema is None else json.dumps(schema)
        for number, case in enumerate(corpus[name], 1):
            yield f"{top}/published reply/{number}", outcome(name, case.text, ScreenView(*case.view))
        view = ScreenView.of_screen(1920, 1080)
        for number, text in enumerate(NO_ACTIONS, 1):
            yield f"{top}/no action/{number}", outcome(name, text, view)
        for other in formats.available_formats():
            said = "\n".join(outcome(name, case.text, ScreenView(*case.view)) for case in corpus[other][:10])
            if other != name:
                yield f"{top}/replies of another format/{other}", said
        for kind, corrupt in CORRUPTIONS.items():
            found = []
            for number, turn in itertools.product(range(len(corpus[name])), range(TIMES)):
                case, chance = corpus[name][number], random.Random(f"{name}, {kind}, {number}, {turn}")
                found.append(outcome(name, corrupt(case.text, chance), ScreenView(*case.view)))
            yield f"{top}/corrupted reply/{kind}", "\n".join(found)


def tool_format_texts() -> Iterator[tuple[str, str]]:
    """(key, text) of how model families write tool calls."""
    calls = (ToolCall("click", '{"x": 5, "where": "a\\nb \\"é\\"", "deep": {"a": [1, null]}}'), ToolCall("say", "{}"))
    for json_action in FORMATS:
        top = f"tool format/{json_action.name}"
        yield f"{top}/calls", json_action.write("I click.", calls)
        yield f"{top}/one call alone", json_action.write("", calls[1:])
        yield f"{top}/grammar of a call", json_action.call_regex(["click", "say.it"])


BAD_ACTIONS: tuple[Any, ...] = (
    {"op": "key", "keys": ["nosuchkey"]},
    {"op": "key", "keys": ["ctrl", "é\u0301"]},
    {"op": "type", "text": "a\x07b"},
    {"op": "key", "keys": ["enter", "U+110000"]},
    {"op": "scroll", "x": 500, "y": 500, "dx": 0, "dy": 100},
)


async def performing_texts() -> dict[str, str]:
    """Why a desktop of this machine does not perform what a format lets through, by key."""
    action_format, view, found = formats.get("deskhand_json"), ScreenView.of_screen(320, 240), {}
    desktop = LocalDesktop(settle_ms=1, settle_timeout_s=0.2)
    try:
        await desktop.reset(DesktopSpec("plain", view.screen_width, view.screen_height))
        for number, action in enumerate(BAD_ACTIONS, 1):
            try:
                await desktop.perform(action_format.parse(json.dumps(action), view), action_id=str(number))
            except AgentError as error:
                found[f"performing/action/{number}"] = getattr(error, "reason", str(error))
            else:
                found[f"performing/action/{number}"] = "performed"
    finally:
        await desktop.close()
    return found
