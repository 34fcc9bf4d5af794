"""Read task files (YAML, JSON) with the line of every value.

Used by all task file formats; start with `load_yaml` or `load_json`, then `validate` against a pydantic model. Every
problem names the file, the line where it is known, and the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from deskhand.errors import ConfigError

Keys = tuple[str | int, ...]
"""Location of a value: the keys and list positions that lead to it."""
MAX_FILE_BYTES = 4 * 2**20
Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A mapping of a foreign task file: known keys are typed, unknown ones are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def kept_as(other: type[BaseModel]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Return a wrap validator that keeps a value which does not fit its model as `other`; `value_notes` says why."""

    def validated(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            return other.model_validate(value)

    return validated


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file. A `note` has no consequence."""

    file: str
    key: str
    message: str
    line: int | None = None
    note: bool = False

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(text for text in (where, self.key, self.message) if text)


class TaskFileError(ConfigError):
    """A task file cannot be used. `problems` has all of its problems; the message is the first."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f" (and {len(problems) - 1} more; deskhand tasks lint lists them)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


def require_valid(problems: Iterable[Problem]) -> None:
    """Raise `TaskFileError` if a problem is more than a note: a misspelt key would have no effect."""
    if found := [problem for problem in problems if not problem.note]:
        raise TaskFileError(found)


class LocatedDocument:
    """A file's value, the line (from 1) of every key and item, and the problems found while reading."""

    def __init__(
        self, file: str, value: Any, find_lines: Callable[[], dict[Keys, int]], problems: list[Problem]
    ) -> None:
        self.file, self.value, self.problems = file, value, problems
        self._find_lines = find_lines

    @cached_property
    def lines(self) -> dict[Keys, int]:
        return self._find_lines()

    def line(self, keys: Keys) -> int | None:
        """Return the line of the value at `keys`, or of the nearest enclosing one."""
        return next((self.lines[keys[:end]] for end in range(len(keys), -1, -1) if keys[:end] in self.lines), None)

    def problem(self, keys: Keys, message: str, *, note: bool = False) -> Problem:
        return Problem(self.file, format_keys(keys), message, self.line(keys), note)


def format_keys(keys: Keys) -> str:
    """Return `("evaluator", "func", 0)` as `evaluator.func[0]`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no white space. Equal values have equal bytes (1 and 1.0 are not equal)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def load_json(path: Path) -> LocatedDocument:
    """Read a JSON file. Raises `TaskFileError` if it is invalid; duplicate keys are problems of the document."""
    file, text = str(path), _text(path)
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                duplicates.append(key)
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise ValueError(f"{word} is not a JSON number")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise TaskFileError([Problem(file, "", f"invalid JSON: {error.msg}", error.lineno)]) from error
    except (ValueError, RecursionError) as error:
        raise TaskFileError([Problem(file, "", f"invalid JSON: {error}")]) from error
    problems = [Problem(file, key, "duplicate key; only the last counts") for key in duplicates]
    return LocatedDocument(file, value, lambda: _json_lines(text), problems)


def load_yaml(path: Path) -> LocatedDocument:
    """Read a YAML file with one document.

    Raises `TaskFileError` if it cannot be read or parsed, or has a duplicate key, a key that is not text, an anchor
    or a tag.
    """
    file = str(path)
    try:
        node = yaml.compose(_text(path), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise TaskFileError([Problem(file, "", f"invalid YAML: {error.problem}", line)]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TaskFileError([Problem(file, "", f"invalid YAML: {' '.join(str(error).split())}")]) from error
    if node is None:
        raise TaskFileError([Problem(file, "", "the file is empty", 1)])
    reader = _Reader(file)
    value = reader.value(node, ())
    if reader.problems:
        raise TaskFileError(reader.problems)
    return LocatedDocument(file, value, lambda: reader.lines, [])


def validate(document: LocatedDocument, model: type[Model]) -> Model:
    """Return the document as a `model`. Raises `TaskFileError` with one problem per invalid value."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise TaskFileError(_problems(document, error)) from error


def value_notes(document: LocatedDocument, keys: Keys, model: type[BaseModel]) -> list[Problem]:
    """Return why the value at `keys` is not a `model`, as notes: the value is kept as it is."""
    value = document.value
    for key in keys:
        value = value[key]
    try:
        model.model_validate(value)
    except ValidationError as error:
        return [replace(each, note=True) for each in _problems(document, error, keys, value)]
    return []


def _problems(document: LocatedDocument, error: ValidationError, at: Keys = (), value: Any = None) -> list[Problem]:
    """Return one problem per invalid value; `value` is at `at` in the document (default: the whole document)."""
    problems: dict[Keys, Problem] = {}
    for found in error.errors(include_url=False, include_context=False):
        inner = _keys_in(value if at else document.value, found["loc"], found["type"] == "missing")
        keys = (*at, *inner)
        problems.setdefault(keys, document.problem(keys, _message(found["type"], found["msg"], found.get("input"))))
    return list(problems.values())


def unknown_keys(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the locations of keys that no field of the model describes."""
    if isinstance(value, BaseModel):
        for name, inner in value:
            field_info = type(value).model_fields.get(name)
            key = field_info.alias if field_info is not None and field_info.alias else name
            if field_info is None:
                yield (*keys, key)
            else:
                yield from unknown_keys(inner, (*keys, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unknown_keys(inner, (*keys, index))


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TaskFileError([Problem(str(path), "", f"larger than {MAX_FILE_BYTES} bytes")])
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskFileError([Problem(str(path), "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise TaskFileError([Problem(str(path), "", f"invalid UTF-8: {error.reason} at byte {error.start}")]) from error


def _json_lines(text: str) -> dict[Keys, int]:
    """Return the lines of a JSON text; empty if the YAML reader, which tracks lines, rejects it."""
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return {}
    reader = _Reader("")
    if node is not None:
        reader.value(node, ())
    return reader.lines


class _Reader:
    """Converts YAML nodes to values. Each node is read once, so that aliases cannot expand a small file."""

    def __init__(self, file: str) -> None:
        self.lines: dict[Keys, int] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._seen: set[int] = set()
        self._scalars = yaml.constructor.SafeConstructor()

    def _problem(self, keys: Keys, message: str, node: yaml.Node) -> None:
        self.problems.append(Problem(self._file, format_keys(keys), message, node.start_mark.line + 1))

    def value(self, node: yaml.Node, keys: Keys) -> Any:
        self.lines.setdefault(keys, node.start_mark.line + 1)
        if id(node) in self._seen:
            return self._problem(keys, "anchors and aliases (& and *) are not allowed", node)
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*keys, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            return self._problem(keys, f"the tag {node.tag} is not allowed", node)
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            return self._problem(keys, f"invalid value: {' '.join(str(error).split())}", node)

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                self._problem(keys, "a key must be a scalar", key_node)
                continue
            key = key_node.value
            if key in found:
                self._problem((*keys, key), "duplicate key", key_node)
            self.lines[(*keys, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*keys, key))
        return found


def _keys_in(value: Any, location: tuple[str | int, ...], missing: bool) -> Keys:
    """Return the part of a pydantic location that leads through `value`, without the names of alternatives.

    With `missing`, the last element is a key that is absent.
    """
    keys: list[str | int] = []
    for index, step in enumerate(location):
        absent = missing and index == len(location) - 1
        if isinstance(value, dict) and (step in value or absent):
            keys.append(step)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and (step < len(value) or absent):
            keys.append(step)
            value = None if absent else value[step]
    return tuple(keys)


def _message(kind: str, message: str, value: Any) -> str:
    if kind == "missing":
        return "missing key"
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "string_type" and isinstance(value, bool):
        return "must be text; quote yes, no, on, off, true and false"
    text = json.dumps(value, default=str)
    return f"{message.removeprefix('Value error, ')}, got {text if len(text) <= 80 else text[:77] + '...'}"
