"""Sections of a reply: reasoning, code blocks, and the text after `Action:`.

Reasoning is `<think>...</think>`, or text up to a lone `</think>` if the chat template opened it. A `</think>` inside
a quoted argument does not end the reasoning. Positions are characters of the whole reply; a truncated section raises
`ParseError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deskhand.errors import ParseError

MAX_BLOCKS = 64
_THINK, _END_OF_THINK = "<think>", "</think>"
_BEFORE_QUOTE = "(=,[:{"
_QUOTE_WINDOW = 2000
"""Characters before a `</think>` that are searched for an opening quote."""
_FENCE = "```"
_INFO = re.compile(r"[ \t]*+([A-Za-z_][\w+-]*+)?[ \t]*+(\r\n|\r|\n)|[ \t]*+(python|code)\b[ \t]*+", re.IGNORECASE)
_MARK_AT_LINE = re.compile(r"^[ \t]*+action[ \t]*+[:：]", re.IGNORECASE | re.MULTILINE)
_MARK_IN_LINE = re.compile(r"\baction[ \t]*+[:：](?=[ \t]*+[A-Za-z_]\w*+[ \t]*+\()", re.IGNORECASE)


def end_of_reasoning(text: str, beginnings: str = "") -> int:
    """Return the end of the reasoning, 0 if there is none. Raises `ParseError` if it is not closed.

    A reply that starts with one of `beginnings` has no reasoning.
    """
    begin = len(text) - len(text.lstrip())
    if text.startswith(_THINK, begin):
        end = text.find(_END_OF_THINK, begin)
        if end < 0:
            raise ParseError((begin, len(text)), f"the reasoning does not end; close it with {_END_OF_THINK} and act")
        return end + len(_END_OF_THINK)
    if begin < len(text) and text[begin] in beginnings:
        return 0
    end = text.find(_END_OF_THINK, begin)
    while end >= 0 and _is_quoted(text, end):
        end = text.find(_END_OF_THINK, end + 1)
    return 0 if end < 0 else end + len(_END_OF_THINK)


def _is_quoted(text: str, at: int) -> bool:
    """Whether the last quote before `at` in its line opens a string, i.e. follows an opening bracket, comma, colon or
    equals."""
    begin = max(0, at - _QUOTE_WINDOW)
    line = (
        text[max(begin, text.rfind("\n", begin, at) + 1) : at].replace("\\\\", "").replace("\\'", "").replace('\\"', "")
    )
    before = line[: max(line.rfind("'"), line.rfind('"'), 0)].rstrip()
    return bool(before) and before[-1] in _BEFORE_QUOTE


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: lower-case `info` string of the opening fence, and the bounds of the content."""

    info: str
    start: int
    end: int
    opening: int


def code_blocks(text: str, start: int) -> list[Block]:
    blocks: list[Block] = []
    opening = text.find(_FENCE, start)
    while opening >= 0:
        begin = opening + len(_FENCE)
        end = text.find(_FENCE, begin)
        if len(blocks) == MAX_BLOCKS:
            raise ParseError((opening, len(text)), f"more than {MAX_BLOCKS} code blocks")
        if end < 0:
            raise ParseError((opening, len(text)), "the code block does not end; close it with ```")
        info = _INFO.match(text, begin, end)
        name = (info[1] or info[3] or "") if info else ""
        blocks.append(Block(name.lower(), info.end() if info else begin, end, opening))
        opening = text.find(_FENCE, end + len(_FENCE))
    return blocks


def check_outside(text: str, start: int, blocks: list[Block], action: re.Pattern[str]) -> None:
    """Raise `ParseError` if `action` (a pattern anchored at line starts) matches after `start` outside of `blocks`.

    Such an action would be lost; other text there is ignored.
    """
    starts = [start, *(block.end + len(_FENCE) for block in blocks)]
    for start, end in zip(starts, [*(block.opening for block in blocks), len(text)], strict=True):
        found = action.search(text[start:end])
        if found is not None:
            at = start + found.start()
            line = text.find("\n", start + found.end())
            raise ParseError(
                (at, end if line < 0 else min(line, end)), "an action outside the code block; write it in the block"
            )


def after_mark(text: str, start: int) -> int | None:
    """Return the position after "Action:", preferring one at the start of a line; None if there is none."""
    rest = text[start:]
    marks = list(_MARK_AT_LINE.finditer(rest))
    if len(marks) > 1:
        raise ParseError(
            (start + marks[1].start(), len(text)), "a second Action: in one reply; write all actions behind one"
        )
    found = marks[0] if marks else _MARK_IN_LINE.search(rest)
    return start + found.end() if found else None


def first_line(text: str, start: int, pattern: re.Pattern[str]) -> int | None:
    """Return the start of the first line that `pattern` (anchored at line starts) matches, after its group "mark".

    `start` counts as the start of a line. Returns None if nothing matches.
    """
    found = pattern.search(text[start:])
    if found is None:
        return None
    return start + (found.end() if found.groupdict().get("mark") else found.start())


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the region without surrounding white space."""
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
