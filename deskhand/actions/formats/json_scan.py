"""From a reply's text to JSON values. Invariant: every character of a reply is reasoning before the first action, part of an
action, or an error; nothing that follows an action is dropped.

Reasoning is `<think>...</think>` at the start, or any text before the first `{"`, `[{` or code fence. Behind it come JSON values,
one after another, bare or in code fences, and nothing else. `exact_values` admits no reasoning and no fences at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from deskhand.actions.formats.code_blocks import end_of_reasoning
from deskhand.actions.formats.limits import MAX_NESTING
from deskhand.errors import ParseError

Span = tuple[int, int]
"""Half-open range of characters of the reply."""
Found = list[tuple[Any, Span]]

_START = re.compile(r'```|\{\s*"|\[\s*\{')
_OPENING = re.compile(r"```[ \t]*(?:[A-Za-z_]\w*)?[ \t]*(?=[\r\n{\[]|$)|```[ \t]*")
_WORD = re.compile(r"[A-Z_]+")
NO_REASONING = "{[`<"
"""With which a reply begins that has no reasoning."""
_SPACE = " \t\n\r"


class Word(str):
    """A bare word that is an action, such as DONE."""

    __slots__ = ()


def parse_json_values(text: str) -> Found:
    """The values of a reply that is one JSON value or one list of them. Raises `ParseError`."""
    position = skip_whitespace(text, 0)
    found, end = _values_at(text, position)
    rest = skip_whitespace(text, end)
    if rest != len(text):
        raise ParseError((rest, len(text)), "unexpected text after the reply's JSON")
    return found


def parse_lenient_values(text: str, words: Container[str] = ()) -> Found:
    """The values behind a reply's reasoning; `words` are actions too, alone in the reply or in a fence. Raises `ParseError`."""
    begin = end_of_reasoning(text, NO_REASONING)
    stripped = text[begin:].strip()
    if stripped in words:
        at = text.index(stripped, begin)
        return [(Word(stripped), (at, at + len(stripped)))]
    start = _START.search(text, begin)
    if start is None:
        raise ParseError((begin, len(text)), "no action found; write it as JSON")
    found: Found = []
    position, fenced = start.start(), False
    while (position := skip_whitespace(text, position)) < len(text):
        if text.startswith("```", position):
            position = position + 3 if fenced else _opened(text, position, words)
            fenced = not fenced
        elif fenced and (word := _WORD.match(text, position)) and word.group() in words:
            found.append((Word(word.group()), word.span()))
            position = word.end()
        elif text[position] in "{[":
            values, position = _values_at(text, position)
            found += values
        else:
            reason = "unexpected text after the action" if found else "not JSON: a code fence holds actions only"
            raise ParseError((position, len(text)), reason)
    if not found:
        raise ParseError((start.start(), len(text)), "no action found; write it as JSON")
    return found


def _opened(text: str, position: int, words: Container[str]) -> int:
    """Behind the opening of a code fence; its language is skipped, a word that is an action is not."""
    word = _WORD.match(text, position + 3)
    if word and word.group() in words:
        return position + 3
    opening = _OPENING.match(text, position)
    assert opening is not None
    return opening.end()


def value_at(text: str, position: int) -> tuple[Any, int]:
    """The JSON value that begins at `position`, and where it ends. Raises `ParseError`."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise ParseError((min(error.pos, len(text)), len(text)), f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ParseError((position, len(text)), f"not JSON: {reason}") from None
    if text.count("[", position, end) + text.count("{", position, end) > MAX_NESTING < _depth(value):
        raise ParseError((position, end), f"nested too deeply; the most is {MAX_NESTING}")
    return value, end


def _depth(value: Any) -> int:
    """How many lists and objects of `value` stand within one another, counted without recursion."""
    layer, depth = [value], 0
    while layer := [item for item in layer if isinstance(item, (dict, list))]:
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
        depth += 1
    return depth


def _values_at(text: str, position: int) -> tuple[Found, int]:
    """The value at `position`, or the elements of the list there, and where that ends."""
    if text[position : position + 1] != "[":
        value, after = value_at(text, position)
        return [(value, (position, after))], after
    found: Found = []
    position = skip_whitespace(text, position + 1)
    while text[position : position + 1] != "]" or found:
        value, after = value_at(text, position)
        found.append((value, (position, after)))
        position = skip_whitespace(text, after)
        if text[position : position + 1] == "]":
            break
        if text[position : position + 1] != ",":
            raise ParseError((position, len(text)), "expected , or ] after an object of the list")
        position = skip_whitespace(text, position + 1)
    return found, position + 1


def skip_whitespace(text: str, position: int) -> int:
    """Behind the white space at `position`."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's pairs as a dict. Raises `ValueError` for a key that is given twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
