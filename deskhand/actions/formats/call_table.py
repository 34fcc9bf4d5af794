"""A dialect as one table of calls. Invariant: a row of the table says how a call is read, how it is written and how it is
offered, so that prompt, parser and emitter cannot differ.

A row joins a call's arguments with the fields of an op: `x` and `y` are its point, `x2` and `y2` the end of a drag of two points,
the rest are the op's own names. A parameter without a field is checked and changes only the pace of a movement, which is the
desktop's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.arg_types import NUMBER, ArgType
from deskhand.actions.formats.call_parser import ParsedCall, Span
from deskhand.actions.formats.limits import truncate_repr
from deskhand.actions.formats.quoting import in_space
from deskhand.actions.ops import Op, Point, Space
from deskhand.errors import AgentError, ParseError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a call. `named`: it is written as name=value."""

    name: str
    kind: ArgType
    field: str = ""
    """The op's field; several with commas between them for a kind that reads a tuple of them."""
    required: bool = False
    named: bool = True
    many: bool = False
    """It takes all positional arguments that are left; it is read from the tuple of them."""
    aliases: tuple[str, ...] = ()
    """Other names that it is read by."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.field.split(",")) if self.field else ()


def point_parameters(required: bool = False) -> tuple[Parameter, Parameter]:
    return Parameter("x", NUMBER, "x", required), Parameter("y", NUMBER, "y", required)


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call. Without `read` it is an op of class `op` whose other fields are `fixed`; without `write` it is written likewise."""

    call: str
    parameters: tuple[Parameter, ...] = ()
    op: type[Op] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[CallReader, ParsedCall, dict[str, Any]], None] | None = None
    write: Callable[[CallTable, CallSpec, Op, Space], list[str] | None] | None = None
    only_read: bool = False
    """Never written: another spelling of what another row writes."""
    example: Op | None = None
    """What the prompt shows, written in the space of the view."""
    offer: str = ""
    """What the prompt shows, as it stands."""
    about: str = ""
    loss: str = ""
    """What is lost when an op of this class is written; "" for nothing."""
    behind_with: bool = False
    """It stands behind `with`, and only there."""
    at_pointer: bool = False
    """It has no place of its own: the move right before it is its point."""
    refusal: str = ""
    """Why a call that the dialect has is not an action here."""


class CallReader:
    """The ops that the calls of a reply have come to, each with the characters that it comes from."""

    def __init__(self, table: CallTable, space: Space, pointer: Point | None = None) -> None:
        self.table = table
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
        last = last_point(op)
        if last is not None:
            self.pointer = last
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

    def run(self, calls: list[ParsedCall] | tuple[ParsedCall, ...]) -> None:
        """Read `calls` by the table. Raises `ParseError`."""
        for call in calls:
            row = self.table.rows_by_call.get(call.name)
            if row is None:
                raise ParseError(
                    call.span, f"{ascii(call.name)[1:-1][:60]} is not an action; known: {self.table.known}"
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
                elif row.op is not None:
                    self.add(build(row.op, {**row.fixed, **values}, self.space), call.span)
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


@dataclass(frozen=True)
class CallTable:
    """The calls of a dialect, in the order in which a way to write an op is looked for."""

    rows: tuple[CallSpec, ...]
    rows_by_call: Mapping[str, CallSpec] = field(init=False)

    def __post_init__(self) -> None:
        by_call: dict[str, CallSpec] = {}
        for row in self.rows:
            by_call.setdefault(row.call, row)
        object.__setattr__(self, "rows_by_call", by_call)

    @property
    def known(self) -> str:
        return ", ".join(row.call for row in self.rows if row.example is not None or row.offer)

    def write(self, op: Op, space: Space) -> list[str]:
        """The lines that say `op`. Raises `AgentError` when no row can."""
        for row in self.rows:
            if row.only_read:
                continue
            place = getattr(op, "point", None) if row.at_pointer and type(op) is row.op else None
            said: Any = op if place is None else replace(op, point=None)  # type: ignore[call-arg]
            lines = row.write(self, row, said, space) if row.write is not None else self.write_plainly(row, said, space)
            if lines is not None:
                return lines if place is None else [*self.write(ir.Move(place), space), *lines]
        raise AgentError(f"this cannot be said: {truncate_repr(op)}")

    def write_plainly(self, row: CallSpec, op: Op, space: Space) -> list[str] | None:
        """The one call of `row` that says `op`; None when it does not say all of it."""
        if row.op is not type(op):
            return None
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


def last_point(op: Op) -> Point | None:
    """Where an op leaves the pointer; None when it does not move it to a place that it names."""
    match op:
        case ir.Move() | ir.Click() | ir.MouseDown() | ir.MouseUp() | ir.Scroll():
            return op.point
        case ir.Drag():
            return op.path[-1]
        case _:
            return None
