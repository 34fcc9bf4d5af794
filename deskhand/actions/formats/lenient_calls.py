"""Parser of UI-TARS calls, whose text arguments may contain unescaped quotes.

A text ends at the quote that is followed by the end of the call's line or by another known argument. Escapes are those
of Python strings; a line break inside a text is allowed. Anything else raises `ParseError` with its span.
"""

from __future__ import annotations

import re
from collections.abc import Container

from deskhand.actions.formats.call_parser import MAX_STATEMENTS, ParsedCall
from deskhand.errors import ParseError

_SPACE = re.compile(r"\s*")
_HEAD = re.compile(r"([A-Za-z_]\w{0,63})[ \t]*+\(\s*+")
_ARGUMENT = re.compile(r"([A-Za-z_]\w{0,63})\s*+=\s*+(['\"])")
_END = re.compile(r"\)[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)")
_LAST = re.compile(r"\s*+,?\s*+\)[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)")
_MORE = re.compile(r"\s*+,\s*+(?=([A-Za-z_]\w{0,63})\s*+=\s*+['\"])")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|\r\n|.)", re.DOTALL)
_PLAIN_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
} | {"\n": "", "\r": "", "\r\n": ""}
_MAX_ARGUMENTS = 8


def parse_lenient_calls(text: str, start: int, end: int, names: Container[str]) -> list[ParsedCall]:
    """Parse the calls in `text[start:end]`, one per line; `names` are the known arguments. Raises `ParseError`."""
    calls: list[ParsedCall] = []
    position = _behind(_SPACE, text, start, end)
    while position < end:
        if len(calls) == MAX_STATEMENTS:
            raise ParseError((position, end), f"more than {MAX_STATEMENTS} actions")
        call = _call(text, position, end, names)
        calls.append(call)
        position = _behind(_SPACE, text, call.span[1], end)
    return calls


def _call(text: str, start: int, end: int, names: Container[str]) -> ParsedCall:
    head = _HEAD.match(text, start, end)
    if head is None:
        raise ParseError((start, end), "expected an action such as wait()")
    named: list[tuple[str, str]] = []
    position = head.end()
    closed = _END.match(text, position, end)
    while closed is None:
        argument = _ARGUMENT.match(text, position, end)
        if argument is None or len(named) == _MAX_ARGUMENTS:
            raise ParseError((position, end), f"{head[1]}: expected name='text', or ) at the end of the line")
        close, position, last = _closing(text, argument.end(), end, argument[2], names)
        named.append((argument[1], _unescaped(text, argument.end(), close)))
        if last:
            break
    else:
        position = closed.end()
    if len({name for name, _ in named}) < len(named):
        raise ParseError((start, position), f"{head[1]}: an argument is given twice")
    return ParsedCall(head[1], (), tuple(named), (start, position))


def _closing(text: str, start: int, end: int, mark: str, names: Container[str]) -> tuple[int, int, bool]:
    """Return the end of the text, the position to continue from, and whether the call ends there."""
    quote = text.find(mark, start, end)
    while quote >= 0:
        slashes = quote
        while slashes > start and text[slashes - 1] == "\\":
            slashes -= 1
        if (quote - slashes) % 2 == 0:
            last = _LAST.match(text, quote + 1, end)
            if last is not None:
                return quote, last.end(), True
            more = _MORE.match(text, quote + 1, end)
            if more is not None and more[1] in names:
                return quote, more.end(), False
        quote = text.find(mark, quote + 1, end)
    raise ParseError(
        (start - 1, end), f"the text does not end; close it with {mark} and the call with ) at the end of the line"
    )


def _unescaped(text: str, start: int, end: int) -> str:
    raw = text[start:end]
    return _ESCAPE.sub(_character, raw) if "\\" in raw else raw


def _character(escape: re.Match[str]) -> str:
    found = escape[1]
    if found in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[found]
    code = (
        int(found[1:], 16) if found[0] in "xuU" and len(found) > 1 else int(found, 8) if found[0] in "01234567" else -1
    )
    return chr(code) if 0 <= code <= 0x10FFFF else escape[0]


def _behind(pattern: re.Pattern[str], text: str, start: int, end: int) -> int:
    found = pattern.match(text, start, end)
    return found.end() if found else start
