"""A dialect of calls in text: a table of calls, a way to find the calls in a reply, and a way to lay them out in one.

Invariant: a row of the table says how a call is read, how it is written and how it is offered, so that prompt, parser and emitter
cannot differ; `parse` gives ops or raises `ParseError`; `parse(emit(ops, view), view) == ops` for ops that the table carries
without loss and whose points are in the dialect's own space (`space`).

A row joins a call's arguments with the fields of an op: `x` and `y` are its point, `x2` and `y2` the end of a drag of two points,
the rest are the op's own names. A parameter without a field is checked and changes only the pace of a movement, which is the
desktop's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.arg_types import Parameter
from deskhand.actions.formats.base import OpSupport, ScreenView, carried
from deskhand.actions.formats.call_parser import ParsedCall, Span
from deskhand.actions.formats.limits import (
    MAX_REPLY,
    check_length,
    check_op,
    check_ops,
    check_point,
    points_of,
    truncate_repr,
)
from deskhand.actions.ops import Op, Point, Space
from deskhand.errors import AgentError, ParseError


class CallSpec:
    """One call: `parameters`, and what its name itself says of the fields (`fixed`).

    `op` is the example that the prompt shows, written in the space of the view, or a class of ops.
    """

    def __init__(
        self,
        call: str,
        op: Any = None,
        about: str = "",
        *parameters: Parameter,
        read: Callable[[CallReader, ParsedCall, dict[str, Any]], None] | None = None,
        write: Callable[[CallActionFormat, CallSpec, Any, Space], list[str] | None] | None = None,
        only_read: bool = False,
        offer: str = "",
        loss: str = "",
        behind_with: bool = False,
        at_pointer: bool = False,
        refusal: str = "",
        **fixed: Any,
    ) -> None:
        self.call, self.about, self.parameters, self.fixed = call, about, parameters, fixed
        self.cls: Any = op if op is None or isinstance(op, type) else type(op)
        self.example: Any = None if isinstance(op, type) else op
        self.read, self.write = read, write
        """Instead of reading and writing an op of `cls` as the parameters say; `write` gives None for what it cannot say."""
        self.only_read = only_read
        """Never written: another spelling of what another row writes."""
        self.offer = offer
        """What the prompt shows, as it stands, where there is no example."""
        self.loss = loss
        """What is lost when an op of this class is written; "" for nothing."""
        self.behind_with = behind_with
        """It stands behind `with`, and only there."""
        self.at_pointer = at_pointer
        """It has no place of its own: the move right before it is its point."""
        self.refusal = refusal
        """Why a call that the dialect has is not an action here."""


class CallReader:
    """The ops that the calls of a reply have come to, each with the characters that it comes from."""

    def __init__(self, dialect: CallActionFormat, space: Space, pointer: Point | None = None) -> None:
        self.dialect = dialect
        self.space = space
        self.ops: list[Op] = []
        self.spans: list[Span] = []
        self.tags: list[str] = []
        """What a row wants to know of an op that it added before; empty for nothing."""
        self.pointer = pointer
        """Where the pointer is, as far as the reply itself says."""
        self.statement = 0
        """Counts the calls that were read."""
        self.moved_in = -1
        """The statement that moved the pointer last and did nothing else."""

    def add(self, op: Op, span: Span, tag: str = "") -> None:
        self.ops.append(op)
        self.spans.append(span)
        self.tags.append(tag)
        places = points_of(op)
        if places:
            self.pointer = places[-1]
        if isinstance(op, ir.Move):
            self.moved_in = self.statement

    def add_op(self, count: int) -> tuple[list[Op], Span]:
        """Remove the last `count` ops, and give them with the characters from the first to the last."""
        taken, span = self.ops[-count:], (self.spans[-count][0], self.spans[-1][1])
        del self.ops[-count:], self.spans[-count:], self.tags[-count:]
        return taken, span

    def add_move(self) -> tuple[Point, Span] | None:
        """Remove the `Move` that the statement before this one came to, if that is what it was."""
        if self.moved_in != self.statement - 1 or not self.ops or not isinstance(self.ops[-1], ir.Move):
            return None
        (move,), span = self.add_op(1)
        assert isinstance(move, ir.Move)
        return move.point, span

    def _place(self, point: Point, span: Span) -> None:
        """Give the last op, which acts where the pointer is, the point that the pointer was moved to."""
        (op,), after = self.add_op(1)
        assert isinstance(op, (ir.Click, ir.MouseDown, ir.MouseUp, ir.Scroll))
        self.add(replace(op, point=point), (span[0], after[1]))

    def run(self, calls: Sequence[ParsedCall]) -> None:
        """Read `calls` by the table. Raises `ParseError`."""
        for call in calls:
            row = self.dialect.rows_by_call.get(call.name)
            if row is None:
                raise ParseError(
                    call.span, f"{ascii(call.name)[1:-1][:60]} is not an action; known: {self.dialect.known}"
                )
            if row.refusal:
                raise ParseError(call.span, f"{row.call} is not an action here: {row.refusal}")
            self.statement += 1
            try:
                values = bind(call, row.parameters)
                if (call.body is not None) != row.behind_with:
                    raise AgentError(f"{row.call} is {'only' if row.behind_with else 'not'} written behind with")
                start = self.add_move() if row.at_pointer else None
                if row.read is not None:
                    row.read(self, call, values)
                elif row.cls is not None:
                    self.add(build(row.cls, {**row.fixed, **values}, self.space), call.span)
                if start is not None:
                    self._place(*start)
            except ParseError:
                raise
            except AgentError as error:
                raise ParseError(call.span, str(error)) from None


def bind(call: ParsedCall, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The fields that a call's arguments say. Raises `AgentError` for an argument that the row does not have."""
    given: dict[str, Any] = {}
    positional = call.positional
    if (
        len(positional) == 1
        and isinstance(positional[0], tuple)
        and len(positional[0]) == 2
        and parameters[:1]
        and parameters[0].name == "x"
    ):
        positional = positional[0]
    for index, parameter in enumerate(parameters):
        if parameter.many:
            if positional[index:]:
                given[parameter.name] = positional[index:]
            positional = positional[:index]
            break
        if index < len(positional):
            given[parameter.name] = positional[index]
    if len(positional) > len(parameters):
        raise AgentError(f"{call.name} takes {len(parameters)} arguments, not {len(positional)}")
    known = {name: parameter.name for parameter in parameters for name in (parameter.name, *parameter.aliases)}
    for written, value in call.named:
        if written not in known:
            raise AgentError(
                f"{call.name} has no argument {truncate_repr(written)}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        name = known[written]
        if name in given:
            raise AgentError(f"{call.name}: {name} is given twice")
        given[name] = value
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in given:
            value = parameter.kind.read(f"{call.name}: {parameter.name}", given[parameter.name])
            names = parameter.fields
            values.update(zip(names, value if len(names) > 1 else (value,), strict=True) if names else ())
        elif parameter.required:
            raise AgentError(f"{call.name} needs {parameter.name}")
    return values


def build(cls: type[Op], values: Mapping[str, Any], space: Space) -> Op:
    """An op from its fields. Raises `AgentError` when a point is half given."""
    made = dict(values)
    for field_name, x, y in (("point", "x", "y"), ("end", "x2", "y2")):
        if (x in made) != (y in made):
            raise AgentError("x and y must be given together, or neither")
        if x in made:
            made[field_name] = Point(made.pop(x), made.pop(y), space)
    if cls is ir.Drag and "end" in made:
        made["path"] = (made.pop("point"), made.pop("end"))
    return cls(**made)


def in_space(point: Point, space: Space) -> Point:
    """`ops.in_space` of a point that is on the screen. Raises `AgentError` when it is not."""
    check_point(point)
    return ir.in_space(point, space)


def flatten_fields(op: Op, space: Space) -> dict[str, Any]:
    """The fields of an op that are not their defaults, with points in `space`. Raises `AgentError` for a point off the screen."""
    found: dict[str, Any] = {}
    for item in fields(op):
        value = getattr(op, item.name)
        if isinstance(value, Point):
            point = in_space(value, space)
            found["x"], found["y"] = point.x, point.y
        elif item.name == "path":
            points = [in_space(point, space) for point in value]
            if len(points) == 2:
                found.update(x=points[0].x, y=points[0].y, x2=points[1].x, y2=points[1].y)
            else:
                found["path"] = points
        elif item.default is MISSING or value != item.default:
            found[item.name] = value
    return found


def arguments(row: CallSpec, values: Mapping[str, Any]) -> str:
    """The arguments of a row's call, written."""
    written = []
    for parameter in row.parameters:
        names = parameter.fields
        if names and all(name in values for name in names):
            text = parameter.kind.write(values[names[0]] if len(names) == 1 else tuple(values[name] for name in names))
            written.append(f"{parameter.name}={text}" if parameter.named else text)
    return ", ".join(written)


def write_plainly(row: CallSpec, op: Op, space: Space) -> list[str] | None:
    """The one call of `row` that says `op`; None when it does not say all of it."""
    values = flatten_fields(op, space)
    for name, value in row.fixed.items():
        default = next(item.default for item in fields(op) if item.name == name)
        if values.pop(name, default) != value:
            return None
    needed = {name for parameter in row.parameters if parameter.required for name in parameter.fields}
    if not set(values) <= {name for parameter in row.parameters for name in parameter.fields}:
        return None
    for name in needed - set(values):
        if not hasattr(op, name):
            return None
        values[name] = getattr(op, name)
    return [f"{row.call}({arguments(row, values)})"]


def amount_lost(notches: int) -> str:
    """What `write_one_way` loses."""
    return f"any amount becomes {notches} notches; one axis at a time"


def write_one_way(dialect: CallActionFormat, row: CallSpec, op: ir.Scroll, space: Space) -> list[str] | None:
    """The wheel by its direction, whatever the amount."""
    if op.modifiers or (op.dx == 0) == (op.dy == 0):
        return None
    return [f"{row.call}({arguments(row, flatten_fields(op, space) | {'dx': op.dx, 'dy': op.dy})})"]


@dataclass(frozen=True)
class CallActionFormat:
    """See `base.Dialect`."""

    name: str
    rows: tuple[CallSpec, ...]
    """The calls, in the order in which a way to write an op is looked for."""
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

    @cached_property
    def rows_by_call(self) -> dict[str, CallSpec]:
        return {row.call: row for row in reversed(self.rows)}

    @cached_property
    def known(self) -> str:
        """The calls that are offered."""
        return ", ".join(row.call for row in self.rows if row.example is not None or row.offer)

    @cached_property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        """How each op is carried, from the rows that write it."""
        rows = [row for row in reversed(self.rows) if not row.only_read]
        return carried({row.cls for row in rows}, self.notes, {row.cls: row.loss for row in rows if row.loss})

    def prompt(self, view: ScreenView) -> str:
        """How the model is told to write; the calls are those of the table."""
        space = self.space(view)
        offered = []
        for row in self.rows:
            shown = "\n".join(self.write(row.example, space)) if row.example is not None else row.offer
            if shown:
                offered.append(f"{shown}  # {row.about}" if row.about else shown)
        return "\n".join(part for part in (self.introduction(view, space), *offered, self.closing) if part)

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        """Read a reply. Raises `ParseError` with the span that was not understood and the reason."""
        check_length(text)
        program = CallReader(self, self.space(view))
        program.run(self.find(text))
        if not program.ops:
            raise ParseError((0, len(text)), f"no action found; known: {self.known}")
        for op, span in zip(program.ops, program.spans, strict=True):
            try:
                check_op(op)
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        wrong = check_ops(program.ops)
        if wrong is not None:
            raise ParseError(program.spans[wrong[0]], wrong[1])
        return program.ops

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        """Write ops. Raises `AgentError` for what the dialect cannot say."""
        if not ops:
            raise AgentError("a reply needs an action")
        for op in ops:
            check_op(op)
        wrong = check_ops(ops)
        if wrong is not None:
            raise AgentError(wrong[1])
        space = self.space(view)
        lines: list[str] = []
        for op in ops:
            try:
                lines += self.write(op, space)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        text = self.lay_out(lines, ops)
        if len(text) > MAX_REPLY:
            raise AgentError(f"a reply of {len(text)} characters; the most is {MAX_REPLY}")
        return text

    def write(self, op: Op, space: Space) -> list[str]:
        """The lines that say `op`. Raises `AgentError` when no row can."""
        for row in self.rows:
            if row.only_read or not (row.cls is type(op) or row.behind_with):
                continue
            place = getattr(op, "point", None) if row.at_pointer else None
            said: Any = op if place is None else replace(op, point=None)  # type: ignore[call-arg]
            lines = row.write(self, row, said, space) if row.write is not None else write_plainly(row, said, space)
            if lines is not None:
                return lines if place is None else [*self.write(ir.Move(place), space), *lines]
        raise AgentError(f"this cannot be said: {truncate_repr(op)}")

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        """None: a reply is not JSON."""
        return None
