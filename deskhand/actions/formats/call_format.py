"""A dialect of text: a table of calls, a way to find the calls in a reply, and a way to lay them out in one.

Invariant: `parse` gives ops or raises `ParseError`; `parse(emit(ops, view), view) == ops` for ops that the table carries without
loss and whose points are in the dialect's own space (`space`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from deskhand.actions.formats.base import OpSupport, ScreenView
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.call_table import CallReader, CallTable
from deskhand.actions.formats.limits import MAX_REPLY, check_length, check_op, check_ops, first_out_of_range
from deskhand.actions.ops import Op, Space
from deskhand.errors import AgentError, ParseError


@dataclass(frozen=True)
class CallActionFormat:
    """See `base.Dialect`."""

    name: str
    table: CallTable
    space: Callable[[ScreenView], Space]
    """The space of the coordinates that the model writes."""
    find: Callable[[str], list[ParsedCall]]
    """The calls of a reply of at most `MAX_REPLY` characters. Raises `ParseError`."""
    lay_out: Callable[[list[str], list[Op]], str]
    """A reply with these lines, which say these ops."""
    introduction: Callable[[ScreenView, Space], str]
    """What the prompt says before the calls."""
    closing: str = ""
    """What the prompt says after the calls."""
    notes: Mapping[type[Op], str] = field(default_factory=dict)
    """What an op that is carried may not ask for."""

    @property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        """How each op is carried, from the rows that write it."""
        return {cls: self._carriage(cls) for cls in get_args(Op)}

    def _carriage(self, cls: type[Op]) -> OpSupport:
        rows = [row for row in self.table.rows if row.op is cls and not row.only_read]
        losses = [row.loss for row in rows if row.loss]
        if not rows:
            return OpSupport("absent", self.notes.get(cls, ""))
        return OpSupport("lossy", losses[0]) if losses else OpSupport("lossless", self.notes.get(cls, ""))

    def prompt(self, view: ScreenView) -> str:
        """How the model is told to write; the calls are those of the table."""
        space = self.space(view)
        offered = []
        for row in self.table.rows:
            shown = "\n".join(self.table.write(row.example, space)) if row.example is not None else row.offer
            if shown:
                offered.append(f"{shown}  # {row.about}" if row.about else shown)
        return "\n".join(part for part in (self.introduction(view, space), *offered, self.closing) if part)

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        """Read a reply. Raises `ParseError` with the span that was not understood and the reason."""
        check_length(text)
        program = CallReader(self.table, self.space(view))
        program.run(self.find(text))
        if not program.ops:
            raise ParseError((0, len(text)), f"no action found; known: {self.table.known}")
        for op, span in zip(program.ops, program.spans, strict=True):
            try:
                check_op(op)
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        wrong = check_ops(program.ops)
        if wrong is not None:
            raise ParseError(program.spans[wrong], first_out_of_range(program.ops, wrong))
        return program.ops

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        """Write ops. Raises `AgentError` for what the dialect cannot say."""
        if not ops:
            raise AgentError("a reply needs an action")
        for op in ops:
            check_op(op)
        wrong = check_ops(ops)
        if wrong is not None:
            raise AgentError(first_out_of_range(ops, wrong))
        space = self.space(view)
        lines: list[str] = []
        for op in ops:
            try:
                lines += self.table.write(op, space)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        text = self.lay_out(lines, ops)
        if len(text) > MAX_REPLY:
            raise AgentError(f"a reply of {len(text)} characters; the most is {MAX_REPLY}")
        return text

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        """None: a reply is not JSON."""
        return None
