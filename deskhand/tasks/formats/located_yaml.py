"""Task files as they lie on the disk. Invariant: what is wrong with a file is said with the file, the line where it can be known,
and the key; nothing of a file is dropped.

`load_json` and `load_yaml` give plain values. `validated` turns them into a pydantic model and `ValidationError` into `Problem`s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from deskhand.errors import ConfigError

Keys = tuple[str | int, ...]
"""Where a value stands: the keys and list positions that lead to it."""
LARGEST_FILE_BYTES = 4 * 2**20
Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A piece of a foreign task file: what is known is typed, and what is not is kept as it came."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to say about a file. A `note` has no consequence (a comment, for instance)."""

    file: str
    key: str
    message: str
    line: int | None = None
    note: bool = False

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(text for text in (where, self.key, self.message) if text)


class TaskFileError(ConfigError):
    """A file that cannot be used. `problems` says everything that is wrong with it; the message is the first of them."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f" (and {len(problems) - 1} more; deskhand tasks lint lists them)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


class LocatedDocument:
    """A file's value, the line (from 1) of every key and item in it, and what was noticed when it was read."""

    def __init__(
        self, file: str, value: Any, find_lines: Callable[[], dict[Keys, int]], problems: list[Problem]
    ) -> None:
        self.file, self.value, self.problems = file, value, problems
        self._find_lines = find_lines

    @cached_property
    def lines(self) -> dict[Keys, int]:
        return self._find_lines()

    def line(self, keys: Keys) -> int | None:
        """The line of the value at `keys`, or of the nearest one around it."""
        return next((self.lines[keys[:end]] for end in range(len(keys), -1, -1) if keys[:end] in self.lines), None)

    def problem(self, keys: Keys, message: str, *, note: bool = False) -> Problem:
        return Problem(self.file, key_text(keys), message, self.line(keys), note)


def key_text(keys: Keys) -> str:
    """`("evaluator", "func", 0)` as `evaluator.func[0]`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no blanks: equal values, and only these, have equal bytes (1 and 1.0 are not equal)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def load_json(path: Path) -> LocatedDocument:
    """Read a JSON file. Raises `TaskFileError` for one that cannot be read or is no JSON; a key that stands twice in an object is
    a problem of the document."""
    file, text = str(path), _text(path)
    doubled: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                doubled.append(key)
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise ValueError(f"{word} is no JSON number")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise TaskFileError([Problem(file, "", f"no JSON: {error.msg}", error.lineno)]) from error
    except (ValueError, RecursionError) as error:
        raise TaskFileError([Problem(file, "", f"no JSON: {error}")]) from error
    problems = [Problem(file, key, "this key stands twice in one object; only the last counts") for key in doubled]
    return LocatedDocument(file, value, lambda: _json_lines(text), problems)


def load_yaml(path: Path) -> LocatedDocument:
    """Read a YAML file with one document. Raises `TaskFileError` when it cannot be read, is no YAML, or has a key twice, a key that
    is no text, an anchor or a tag."""
    file = str(path)
    try:
        node = yaml.compose(_text(path), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise TaskFileError([Problem(file, "", f"no YAML: {error.problem}", line)]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TaskFileError([Problem(file, "", f"no YAML: {' '.join(str(error).split())}")]) from error
    if node is None:
        raise TaskFileError([Problem(file, "", "the file is empty", 1)])
    reader = _Reader(file)
    value = reader.value(node, ())
    if reader.problems:
        raise TaskFileError(reader.problems)
    return LocatedDocument(file, value, lambda: reader.lines, [])


def validated(document: LocatedDocument, model: type[Model]) -> Model:
    """The document as a `model`. Raises `TaskFileError` with one problem for each value that is wrong."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        problems: dict[Keys, Problem] = {}
        for found in error.errors(include_url=False, include_context=False):
            keys = _keys_in(document.value, found["loc"], found["type"] == "missing")
            problems.setdefault(keys, document.problem(keys, _words(found["type"], found["msg"], found.get("input"))))
        raise TaskFileError(list(problems.values())) from error


def unknown_keys(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Where a model holds keys that none of its fields is for."""
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
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise TaskFileError(
                [Problem(str(path), "", f"larger than {LARGEST_FILE_BYTES} bytes; this is no task file")]
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskFileError([Problem(str(path), "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise TaskFileError([Problem(str(path), "", f"no UTF-8: {error.reason} at byte {error.start}")]) from error


def _json_lines(text: str) -> dict[Keys, int]:
    """Lines of a JSON text that was read already. Empty where YAML's reader, which knows lines, does not take it."""
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return {}
    reader = _Reader("")
    if node is not None:
        reader.value(node, ())
    return reader.lines


class _Reader:
    """Turns YAML's nodes into values. No node is read twice, so that aliases cannot make a small file a large value."""

    def __init__(self, file: str) -> None:
        self.lines: dict[Keys, int] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._seen: set[int] = set()
        self._scalars = yaml.constructor.SafeConstructor()

    def _problem(self, keys: Keys, message: str, node: yaml.Node) -> None:
        self.problems.append(Problem(self._file, key_text(keys), message, node.start_mark.line + 1))

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
            return self._problem(keys, f"no value: {' '.join(str(error).split())}", node)

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                self._problem(keys, "a key must be a word", key_node)
                continue
            key = key_node.value
            if key in found:
                self._problem((*keys, key), "this key stands twice", key_node)
            self.lines[(*keys, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*keys, key))
        return found


def _keys_in(value: Any, location: tuple[str | int, ...], missing: bool) -> Keys:
    """The part of pydantic's location that leads through `value`; names of alternatives are left out. With `missing`, the last
    step is a key that is not there."""
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


def _words(kind: str, message: str, given: Any) -> str:
    if kind == "missing":
        return "this key is missing"
    if kind == "extra_forbidden":
        return "this key is not known"
    if kind == "string_type" and isinstance(given, bool):
        return "a text is wanted; yes, no, on, off, true and false need quotes"
    text = json.dumps(given, default=str)
    return f"{message.removeprefix('Value error, ')}, not {text if len(text) <= 80 else text[:77] + '...'}"
