"""Formats whose actions are calls in text, such as `click(x=1, y=2)`.

`CallActionFormat` combines a table of `CallSpec`s with functions that find the calls in a reply and lay them out. One
spec defines how a call is parsed, written and shown in the prompt, so the three cannot differ. Parameters map to op
fields: `x` and `y` are the point, `x2` and `y2` the end of a two-point drag, the rest are field names. Parameters
without a field are validated and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.arg_types import Parameter
from deskhand.actions.formats.base import OpSupport, ScreenView, support_of_ops
from deskhand.actions.formats.call_parser import ParsedCall, Span
from deskhand.actions.formats.limits import (
    MAX_REPLY,
    check_length,
    check_op,
    check_ops,
    points_of,
    truncate_repr,
)
from deskhand.actions.ops import Op, Point, Space, in_space
from deskhand.errors import AgentError, ParseError


class CallSpec:
    """One call: its parameters, and the op fields that its name implies (`fixed`).

    `op` is the example shown in the prompt, written in the space of the view, or an op class; `offer` is the prompt
    text of a call without an example. `read` and `write` override the conversion by parameters; `write` returns None
    for an op that it cannot express. `loss` is what is lost when writing the op. A `parse_only` call is accepted, but
    never written; one `in_with` is allowed only in a `with` statement; one `at_pointer` has no coordinates: the
    preceding move is its point. `unsupported_reason` says why a published call is rejected.
    """

    def __init__(  # noqa: PLR0913
        self,
        call: str,
        op: Any = None,
        about: str = "",
        *parameters: Parameter,
        read: Callable[[CallReader, ParsedCall, dict[str, Any]], None] | None = None,
        write: Callable[[CallActionFormat, CallSpec, Any, Space], list[str] | None] | None = None,
        parse_only: bool = False,
        offer: str = "",
        loss: str = "",
        in_with: bool = False,
        at_pointer: bool = False,
        unsupported_reason: str = "",
        **fixed: Any,
    ) -> None:
        self.call, self.about, self.parameters, self.fixed = call, about, parameters, fixed
        self.cls: Any = op if op is None or isinstance(op, type) else type(op)
        self.example: Any = None if isinstance(op, type) else op
        self.read, self.write = read, write or write_plainly
        self.parse_only, self.in_with, self.at_pointer = parse_only, in_with, at_pointer
        self.offer, self.loss, self.unsupported_reason = offer, loss, unsupported_reason


class CallReader:
    """Converts the calls of one reply to ops with their spans."""

    def __init__(self, action_format: CallActionFormat, space: Space, pointer: Point | None = None) -> None:
        self.action_format = action_format
        self.space = space
        self.ops: list[Op] = []
        self.spans: list[Span] = []
        self.tags: list[str] = []
        """Marks that a spec leaves on its ops for later calls; empty for none."""
        self.pointer = pointer
        """Pointer position, if known from the reply."""
        self.statement = 0
        """Number of calls read."""
        self.moved_in = -1
        """Last statement that was a plain move."""

    def add(self, op: Op, span: Span, tag: str = "") -> None:
        self.ops.append(op)
        self.spans.append(span)
        self.tags.append(tag)
        points = points_of(op)
        if points:
            self.pointer = points[-1]
        if isinstance(op, ir.Move):
            self.moved_in = self.statement

    def pop_ops(self, count: int) -> tuple[list[Op], Span]:
        """Remove the last `count` ops and return them with their combined span."""
        taken, span = self.ops[-count:], (self.spans[-count][0], self.spans[-1][1])
        del self.ops[-count:], self.spans[-count:], self.tags[-count:]
        return taken, span

    def pop_move(self) -> tuple[Point, Span] | None:
        """Remove the `Move` of the preceding statement, if it was one."""
        if self.moved_in != self.statement - 1 or not self.ops or not isinstance(self.ops[-1], ir.Move):
            return None
        (move,), span = self.pop_ops(1)
        assert isinstance(move, ir.Move)
        return move.point, span

    def run(self, calls: Sequence[ParsedCall]) -> None:
        """Convert `calls` with the format's table. Raises `ParseError`."""
        for call in calls:
            spec, known = self.action_format.specs_by_call.get(call.name), self.action_format.known
            if spec is None:
                raise ParseError(call.span, f"{ascii(call.name)[1:-1][:60]} is not an action; known: {known}")
            if spec.unsupported_reason:
                raise ParseError(call.span, f"{spec.call} is not an action here: {spec.unsupported_reason}")
            self.statement += 1
            try:
                values = bind(call, spec.parameters)
                if (call.body is not None) != spec.in_with:
                    raise AgentError(f"{spec.call} is {'only' if spec.in_with else 'not'} written behind with")
                start = self.pop_move() if spec.at_pointer else None
                if spec.read is not None:
                    spec.read(self, call, values)
                elif spec.cls is not None:
                    self.add(build(spec.cls, {**spec.fixed, **values}, self.space), call.span)
                if start is not None:
                    op: Any
                    (op,), span = self.pop_ops(1)
                    self.add(replace(op, point=start[0]), (start[1][0], span[1]))
            except ParseError:
                raise
            except AgentError as error:
                raise ParseError(call.span, str(error)) from None


def bind(call: ParsedCall, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Convert the arguments of a call to op fields. Raises `AgentError` if they do not match the parameters."""
    given: dict[str, Any] = {}
    positional = call.positional
    match positional:
        case ((_, _) as pair,) if parameters and parameters[0].name == "x":
            positional = pair
    for index, parameter in enumerate(parameters):
        if parameter.variadic:
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
    """Build an op from its fields. Raises `AgentError` if only one coordinate of a point is present."""
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
    """Return the non-default fields of an op, with points in `space`. Raises `AgentError` if a point is off the
    screen."""
    found: dict[str, Any] = {}
    for item in fields(op):
        value = getattr(op, item.name)
        if isinstance(value, Point):
            point = in_space(value, space)
            found["x"], found["y"] = point.x, point.y
        elif item.name == "path":
            points = [in_space(point, space) for point in value]
            ends = {"x": points[0].x, "y": points[0].y, "x2": points[-1].x, "y2": points[-1].y}
            found |= ends if len(points) == 2 else {"path": points}
        elif item.default is MISSING or value != item.default:
            found[item.name] = value
    return found


def arguments(spec: CallSpec, values: Mapping[str, Any]) -> str:
    written = []
    for parameter in spec.parameters:
        names = parameter.fields
        if names and all(name in values for name in names):
            text = parameter.kind.write(values[names[0]] if len(names) == 1 else tuple(values[name] for name in names))
            written.append(f"{parameter.name}={text}" if parameter.named else text)
    return ", ".join(written)


def write_plainly(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    """Return the call of `spec` that expresses `op`; None if it cannot express all of it."""
    values, defaults = flatten_fields(op, space), {item.name: item.default for item in fields(op)}
    if any(values.pop(name, defaults[name]) != value for name, value in spec.fixed.items()):
        return None
    if not set(values) <= {name for parameter in spec.parameters for name in parameter.fields}:
        return None
    for name in (name for parameter in spec.parameters if parameter.required for name in parameter.fields):
        if name not in values:
            if not hasattr(op, name):
                return None
            values[name] = getattr(op, name)
    return [f"{spec.call}({arguments(spec, values)})"]


def amount_lost(notches: int) -> str:
    """Return the loss of `write_one_way`."""
    return f"any amount becomes {notches} notches; one axis at a time"


def write_one_way(action_format: CallActionFormat, spec: CallSpec, op: ir.Scroll, space: Space) -> list[str] | None:
    """Write a scroll by its direction alone."""
    if op.modifiers or (op.dx == 0) == (op.dy == 0):
        return None
    return [f"{spec.call}({arguments(spec, flatten_fields(op, space) | {'dx': op.dx, 'dy': op.dy})})"]


@dataclass(frozen=True)
class CallActionFormat:
    """See `base.ActionFormat`."""

    name: str
    specs: tuple[CallSpec, ...]
    """Table of calls; the first match is used for writing."""
    space: Callable[[ScreenView], Space]
    """Coordinate space of the model's output."""
    find: Callable[[str], list[ParsedCall]]
    """Finds the calls of a reply of at most `MAX_REPLY` characters. Raises `ParseError`."""
    layout: Callable[[list[str], list[Op]], str]
    """Builds a reply from lines and the ops that they express."""
    introduction: Callable[[ScreenView, Space], str]
    """Prompt text before the calls."""
    closing: str = ""
    """Prompt text after the calls."""
    notes: Mapping[type[Op], str] = field(default_factory=dict)
    """Restrictions of supported ops."""

    @cached_property
    def specs_by_call(self) -> dict[str, CallSpec]:
        return {spec.call: spec for spec in reversed(self.specs)}

    @cached_property
    def known(self) -> str:
        """Names of the calls in the prompt."""
        return ", ".join(spec.call for spec in self.specs if spec.example is not None or spec.offer)

    @cached_property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        specs = [spec for spec in reversed(self.specs) if not spec.parse_only]
        losses = {spec.cls: spec.loss for spec in specs if spec.loss}
        return support_of_ops({spec.cls for spec in specs}, self.notes, losses)

    def prompt(self, view: ScreenView) -> str:
        space, offered = self.space(view), []
        for spec in self.specs:
            shown = "\n".join(self.write(spec.example, space)) if spec.example is not None else spec.offer
            if shown:
                offered.append(f"{shown}  # {spec.about}" if spec.about else shown)
        return "\n".join(part for part in (self.introduction(view, space), *offered, self.closing) if part)

    def parse(self, text: str, view: ScreenView) -> list[Op]:
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
        text = self.layout(lines, ops)
        if len(text) > MAX_REPLY:
            raise AgentError(f"a reply of {len(text)} characters; the most is {MAX_REPLY}")
        return text

    def write(self, op: Op, space: Space) -> list[str]:
        """Return the lines that express `op`. Raises `AgentError` if no call can."""
        for spec in self.specs:
            if spec.parse_only or not (spec.cls is type(op) or spec.in_with):
                continue
            point = getattr(op, "point", None) if spec.at_pointer else None
            bare: Any = op if point is None else replace(op, point=None)  # type: ignore[call-arg]
            lines = spec.write(self, spec, bare, space)
            if lines is not None:
                return lines if point is None else [*self.write(ir.Move(point), space), *lines]
        raise AgentError(f"this cannot be said: {truncate_repr(op)}")

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        return None
