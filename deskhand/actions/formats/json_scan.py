"""JSON values of a reply, with their positions.

`parse_lenient_values` skips reasoning (`<think>...</think>`, or text before the first `{"`, `[{` or code fence) and
then accepts JSON values only, bare or in code fences. `parse_json_values` accepts neither reasoning nor fences. Text
after an action is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from deskhand.actions.formats.limits import MAX_NESTING
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.errors import ParseError

Span = tuple[int, int]
"""Half-open character range of the reply."""
Found = list[tuple[Any, Span]]

_START = re.compile(r'```|\{\s*"|\[\s*\{')
_OPENING = re.compile(r"```[ \t]*+(?:[A-Za-z_]\w*+)?[ \t]*+(?=[\r\n{\[]|$)|```[ \t]*+")
_WORD = re.compile(r"[A-Z_]+")
NO_REASONING = "{[`<"
"""First characters of a reply without reasoning."""
_SPACE = " \t\n\r"


class Word(str):
    """A bare word that is an action, e.g. DONE."""

    __slots__ = ()


def parse_json_values(text: str) -> Found:
    """Parse a reply that is one JSON value or list. Raises `ParseError`."""
    position = skip_whitespace(text, 0)
    found, end = _values_at(text, position)
    rest = skip_whitespace(text, end)
    if rest != len(text):
        raise ParseError((rest, len(text)), "unexpected text after the reply's JSON")
    return found


def parse_lenient_values(text: str, words: Container[str] = ()) -> Found:
    """Parse the values after the reasoning; `words` are actions if alone or in a fence. Raises `ParseError`."""
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
    """Return the end of an opening code fence and its language, unless that is one of `words`."""
    word = _WORD.match(text, position + 3)
    if word and word.group() in words:
        return position + 3
    opening = _OPENING.match(text, position)
    assert opening is not None
    return opening.end()


def value_at(text: str, position: int) -> tuple[Any, int]:
    """Parse the JSON value at `position`; return it with its end. Raises `ParseError`."""
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
    """Return the nesting depth of `value`, without recursion."""
    layer, depth = [value], 0
    while layer := [item for item in layer if isinstance(item, (dict, list))]:
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
        depth += 1
    return depth


def _values_at(text: str, position: int) -> tuple[Found, int]:
    """Parse the value, or the elements of the list, at `position`; return them with their end."""
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
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert pairs to a dict. Raises `ValueError` for a duplicate key."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
