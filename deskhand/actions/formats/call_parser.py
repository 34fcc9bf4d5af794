"""Parser of Python-like text into calls with literal arguments. Text is parsed with `ast` and never executed.

Besides calls, a `CallGrammar` may allow imports, `with` and short `for ... in range(n)` blocks around calls, no-op
settings, names of literals with arithmetic, and bare words such as DONE. Everything else raises `ParseError` with its
span. Sizes are bounded before `ast` sees the code.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deskhand.actions.formats.limits import MAX_NUMBER
from deskhand.errors import ParseError

MAX_CODE = 16_384
"""Characters of code, excluding strings and comments."""
MAX_STATEMENTS = 256
MAX_ITEMS = 256
"""Items of a list; also arguments of a call."""
MAX_ITERATIONS = 20
"""Iterations of a loop."""
_MAX_DEPTH = 3

Span = tuple[int, int]
Literal = int | float | str | bool | None | tuple["Literal", ...]

_TEXT_OR_COMMENT = re.compile(
    r"(?P<prefix>(?:(?<![A-Za-z])[A-Za-z]{1,3})?)(?:'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*+(?:\"\"\")?"
    r"|'(?:[^'\\\r\n]|\\.)*+'?|\"(?:[^\"\\\r\n]|\\.)*+\"?)|#[^\r\n]*+",
    re.DOTALL,
)
_WARNING_SOURCE = re.compile(r"\\[^\\'\"abfnrtvxuUN0-3\n\r]|[0-9a-fA-F._jJ](?:and|else|for|i[fns]|not|or)")
"""Code that Python warns about: unknown escapes, and keywords directly after a number."""
_NO_FILE = ""
"""File name passed to `ast.parse`. Python opens that file to show the line of a syntax error, so no file may have
it."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_LEADING_SPACE = re.compile(r"(?:[ \t]*+(?:#[^\r\n]*+)?(?:\r\n|\r|\n))*+(?P<indent>[ \t]++)[^\s#]")


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: dotted `name`, `named` keyword arguments, and the `body` of a `with` statement (None without one)."""

    name: str
    positional: tuple[Literal, ...]
    named: tuple[tuple[str, Literal], ...]
    span: Span
    body: tuple[ParsedCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """What a format allows besides calls."""

    modules: frozenset[str] = frozenset()
    """Modules whose `import` is ignored."""
    words: frozenset[str] = frozenset()
    """Bare words that are actions."""
    settings: frozenset[str] = frozenset()
    """Dotted names that may be assigned a number or boolean; the assignment is ignored."""
    contexts: frozenset[str] = frozenset()
    """Dotted names of calls allowed in `with`."""
    loops: bool = False
    """Allow `for ... in range(3):`; the calls inside are repeated."""
    constants: frozenset[str] = frozenset()
    """Dotted names allowed as arguments; each is read as its own text."""
    variables: bool = False
    """Allow `name = literal`, names of literals as arguments, and arithmetic of numbers."""


def parse_calls(text: str, start: int, end: int, grammar: CallGrammar) -> list[ParsedCall]:
    """Parse the calls in `text[start:end]`, with spans in `text`. Raises `ParseError`."""
    _check_size(text, start, end)
    return _Source(text, start, end, grammar).calls()


def _check_size(text: str, start: int, end: int) -> None:
    code = end - start
    for match in _TEXT_OR_COMMENT.finditer(text, start, end):
        prefix = match["prefix"] or ""
        if "f" in prefix.lower():
            raise ParseError(match.span(), "a text with f before it is computed; write the text itself")
        code -= match.end() - match.start()
    if code > MAX_CODE:
        raise ParseError((start, end), f"too much code: {code} characters besides texts; the most is {MAX_CODE}")


class _Source:
    """A piece of code and the positions of its lines in the reply."""

    def __init__(self, text: str, start: int, end: int, grammar: CallGrammar) -> None:
        self._grammar = grammar
        self._end = end
        code = text[start:end]
        indented = _LEADING_SPACE.match(code)
        self._first_line = 2 if indented and indented["indent"] else 1
        self._code = f"if 1:\n{code}" if self._first_line == 2 else code
        self._starts = [start, *(start + match.end() for match in _LINE_END.finditer(code))]
        self._text = text
        self._count = 0
        self._variables: dict[str, Literal] = {}

    def calls(self) -> list[ParsedCall]:
        tree = self._tree()
        body: Sequence[ast.stmt] = tree.body
        if self._first_line == 2:
            block = body[0]
            if len(body) != 1 or not isinstance(block, ast.If) or block.orelse:
                raise ParseError(self._span(body[-1]), "not Python: unexpected indentation")
            body = block.body
        return self._statements(body)

    def _tree(self) -> ast.Module:
        try:
            if _WARNING_SOURCE.search(self._code):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return ast.parse(self._code, _NO_FILE)
            return ast.parse(self._code, _NO_FILE)
        except SyntaxError as error:
            raise ParseError(self._span_of_error(error), f"not Python: {ascii(error.msg)[1:-1]}") from None
        except (RecursionError, MemoryError):
            raise ParseError((self._starts[0], self._end), "not Python that can be read: nested too deeply") from None
        except (ValueError, OverflowError):
            reason = "not Python: it holds a null or half of a surrogate pair"
            raise ParseError((self._starts[0], self._end), reason) from None

    def _statements(self, body: Sequence[ast.stmt]) -> list[ParsedCall]:
        found: list[ParsedCall] = []
        for statement in body:
            self._count += 1
            if self._count > MAX_STATEMENTS:
                raise ParseError(self._span(statement), f"more than {MAX_STATEMENTS} statements")
            found += self._statement(statement)
        return found

    def _statement(self, statement: ast.stmt) -> list[ParsedCall]:
        grammar = self._grammar
        match statement:
            case ast.Expr(value=ast.Call() as call):
                return [self._call(call)]
            case ast.Expr(value=ast.Name(id=word)) if word in grammar.words:
                return [ParsedCall(word, (), (), self._span(statement))]
            case ast.Import(names=names) if all(
                alias.name in grammar.modules and alias.asname is None for alias in names
            ):
                return []
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.Constant(value=bool() | int() | float())):
                if _dotted(target) in grammar.settings:
                    return []
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self._is_variable(name):
                self._variables[name] = self._literal(value, 0)
                return []
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                if all(isinstance(name, ast.Name) and self._is_variable(name.id) for name in names):
                    found = [self._literal(value, 0) for value in values]
                    self._variables |= {ast.unparse(name): each for name, each in zip(names, found, strict=True)}
                    return []
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=None)], body=body):
                if _dotted(call.func) in grammar.contexts:
                    return [self._call(call, tuple(self._statements(body)))]
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int() as turns)], keywords=[]),
                body=body,
                orelse=[],
            ) if grammar.loops and not isinstance(turns, bool):
                if not 1 <= turns <= MAX_ITERATIONS:
                    raise ParseError(self._span(statement), f"a loop turns 1 to {MAX_ITERATIONS} times")
                return [call for turn in range(turns) for call in self._turn(name, turn, body)]
        kind = type(statement.value if isinstance(statement, ast.Expr) else statement)
        name = _NAME_OF_KIND.get(kind, "this")
        raise ParseError(self._span(statement), f"only calls with literal arguments are read, not {name}")

    def _is_variable(self, name: str) -> bool:
        return self._grammar.variables and name not in self._grammar.modules | self._grammar.words

    def _turn(self, name: str, turn: int, body: Sequence[ast.stmt]) -> list[ParsedCall]:
        if self._is_variable(name):
            self._variables[name] = turn
        return self._statements(body)

    def _call(self, call: ast.Call, body: tuple[ParsedCall, ...] | None = None) -> ParsedCall:
        name = _dotted(call.func)
        if name is None:
            raise ParseError(self._span(call.func), "only calls of plain names are read")
        if len(call.args) + len(call.keywords) > MAX_ITEMS:
            raise ParseError(self._span(call), f"more than {MAX_ITEMS} arguments")
        positional = tuple(self._literal(argument, 0) for argument in call.args)
        named: list[tuple[str, Literal]] = []
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ParseError(self._span(keyword.value), "** is not read; write the arguments")
            if any(keyword.arg == other for other, _ in named):
                raise ParseError(self._span(keyword.value), f"{ascii(keyword.arg)[1:-1]} is given twice")
            named.append((keyword.arg, self._literal(keyword.value, 0)))
        return ParsedCall(name, positional, tuple(named), self._span(call), body)

    def _literal(self, node: ast.expr, depth: int) -> Literal:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(
                op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)
            ) if not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
            case ast.Name(id=name) if name in self._variables:
                return self._variables[name]
            case ast.BinOp(left=left, op=sign, right=right) if self._grammar.variables and depth < _MAX_DEPTH:
                if (made := self._arithmetic(left, sign, right, depth)) is not None:
                    return made
            case ast.Attribute() if (name := _dotted(node)) in self._grammar.constants:
                return name
            case ast.List(elts=items) | ast.Tuple(elts=items) if depth < _MAX_DEPTH and len(items) <= MAX_ITEMS:
                return tuple(self._literal(item, depth + 1) for item in items)
        kind = _NAME_OF_KIND.get(type(node), "this")
        raise ParseError(self._span(node), f"an argument must be a literal number, text or list, not {kind}")

    def _arithmetic(self, left: ast.expr, sign: ast.operator, right: ast.expr, depth: int) -> Literal:
        """Return the result of `+ - * / //` of two numbers; None for anything else."""
        sides = [self._literal(side, depth + 1) for side in (left, right)]
        values = [value for value in sides if isinstance(value, int | float) and not isinstance(value, bool)]
        apply = _OPERATORS.get(type(sign))
        if apply is None or len(values) < 2 or any(abs(value) > MAX_NUMBER for value in values):
            return None
        return apply(*values) if values[1] or not isinstance(sign, ast.Div | ast.FloorDiv) else None

    def _span(self, node: ast.stmt | ast.expr) -> Span:
        start = self._position(node.lineno, node.col_offset)
        end_line, end_column = node.end_lineno, node.end_col_offset
        end = self._end if end_line is None or end_column is None else self._position(end_line, end_column)
        return start, max(start, end)

    def _position(self, line: int, column: int) -> int:
        """Convert a line (from 1) and a column in UTF-8 bytes to a position in the reply."""
        index = line - self._first_line
        if not 0 <= index < len(self._starts):
            return self._starts[0] if index < 0 else self._end
        start = self._starts[index]
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self._end
        return min(start + len(self._text[start:end].encode()[:column].decode(errors="ignore")), self._end)

    def _span_of_error(self, error: SyntaxError) -> Span:
        """Return the span from the error to the end of its line."""
        index = min(max((error.lineno or 1) - self._first_line, 0), len(self._starts) - 1)
        start = min(self._starts[index] + max((error.offset or 1) - 1, 0), self._end)
        after = bisect_right(self._starts, start)
        return start, self._starts[after] if after < len(self._starts) else self._end


def _dotted(node: ast.expr) -> str | None:
    """Return `a.b.c` as text; None for anything but names and dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_KINDS = {
    "an import of this": (ast.Import,), "an import from a module": (ast.ImportFrom,),
    "an assignment": (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr), "a loop": (ast.For, ast.While),
    "an if": (ast.If,), "a with of this": (ast.With,), "a try": (ast.Try,),
    "a function": (ast.FunctionDef, ast.AsyncFunctionDef), "a class": (ast.ClassDef,), "a call": (ast.Call,),
    "a name": (ast.Name,), "an attribute": (ast.Attribute,), "arithmetic": (ast.BinOp,), "logic": (ast.BoolOp,),
    "a comparison": (ast.Compare,), "a choice": (ast.IfExp,), "a computed text": (ast.JoinedStr,),
    "a lambda": (ast.Lambda,), "a comprehension": (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    "an index": (ast.Subscript,), "an unpacking": (ast.Starred,), "a constant of this kind": (ast.Constant,),
    "a dictionary": (ast.Dict,), "a set": (ast.Set,), "an await": (ast.Await,), "a del": (ast.Delete,),
}  # fmt: skip
"""Descriptions of unsupported Python syntax, for errors."""
_NAME_OF_KIND: dict[type[ast.AST], str] = {kind: name for name, kinds in _KINDS.items() for kind in kinds}
