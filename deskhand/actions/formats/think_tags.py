"""Where a reply's reasoning ends. Invariant: `</think>` ends it only where it is not part of a text that an action holds; an action
in front of such a text is never taken for reasoning.

A model that thinks writes `<think>...</think>`, or, where the chat template has opened its reasoning, `</think>` alone.
"""

from __future__ import annotations

from deskhand.errors import ParseError

_THINK, _END_OF_THINK = "<think>", "</think>"
_BEFORE_A_TEXT = "(=,[:{"
_LOOKED_BACK = 2000
"""Characters in front of a `</think>` that are looked at for the quote that opens a text."""


def end_of_reasoning(text: str, beginnings: str = "") -> int:
    """Behind the reasoning; 0 when there is none. Raises `ParseError` when the reasoning never ends.

    A reply that begins with one of `beginnings` has none.
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
    while end >= 0 and _in_a_text(text, end):
        end = text.find(_END_OF_THINK, end + 1)
    return 0 if end < 0 else end + len(_END_OF_THINK)


def _in_a_text(text: str, at: int) -> bool:
    """Whether the last quote before `at` in its line opens a text: it stands behind what an argument or a value stands behind."""
    begin = max(0, at - _LOOKED_BACK)
    line = (
        text[max(begin, text.rfind("\n", begin, at) + 1) : at].replace("\\\\", "").replace("\\'", "").replace('\\"', "")
    )
    before = line[: max(line.rfind("'"), line.rfind('"'), 0)].rstrip()
    return bool(before) and before[-1] in _BEFORE_A_TEXT
