"""Reads a run's settings. Invariant: file < environment < command line, and what is not understood stops the run before it starts.

A file is YAML: `trainer: {learning_rate: 1e-4}`. The environment says the same as `DESKHAND_TRAINER__LEARNING_RATE=1e-4`, and the
command line as `--set trainer.learning_rate=1e-4`. Under `stages` a file may hold settings by name of which `--stage` takes one,
over the others of the file. Every error is one line that names where the setting stands, its key and the mend. What can be set is
in `deskhand.config.schema`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from deskhand.config.schema import Config
from deskhand.errors import ConfigError

__all__ = ["Config", "config_of_run", "known_keys", "load_config", "read_config_file"]
ENVIRONMENT_PREFIX = "DESKHAND_"
STAGES, FULL = "stages", "full"

Setting = tuple[tuple[str, ...], Any, str]
"""The path of keys, the value, and where it was said."""


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    base: tuple[Mapping[str, Any], str] | None = None,
    stage: str | None = None,
) -> Config:
    """Read the settings. `overrides` are `key.key=value`; `base` are settings that all others beat, and where they stand; `stage`
    names one of the file's stages, FULL is the file without any.

    Raises `ConfigError`, one line for the first thing that is wrong.
    """
    if stage is not None and path is None:
        raise ConfigError(f"--stage {stage}: stages are of a config file; give that file too, or leave --stage out")
    stored = [((key,), value, base[1]) for key, value in base[0].items()] if base else []
    said = [
        *stored,
        *(_from_file(path, stage) if path else ()),
        *_from_environment(environment or {}),
        *_from_command_line(overrides),
    ]
    settings = [setting for keys, value, origin in said for setting in _flattened(keys, value, origin)]
    values: dict[str, Any] = {}
    displaced = _Displaced()
    for keys, value, origin in settings:
        _check_key(keys, origin)
        place = values
        displaced.note(values, keys, value, origin)
        for key in keys[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[keys[-1]] = value
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explained(error, settings)) from None


def config_of_run(about: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """The settings that the run in `folder` keeps, changed by `overrides`. Raises `ConfigError` for those of another version."""
    return load_config(None, overrides, base=(about.get("config", {}), f"{folder}/run.sqlite"))


class _Displaced:
    """Of keys that exclude each other the one of the later place counts; what the earlier place said beside its own goes too."""

    def __init__(self) -> None:
        self._origins: dict[tuple[str, ...], str] = {}
        self._chosen: dict[tuple[str, ...], str] = {}

    def note(self, values: dict[str, Any], keys: tuple[str, ...], value: Any, origin: str) -> None:
        """Take out of `values` what `keys`, which are said at `origin`, take the place of."""
        section, place = keys[:-1], values
        if keys[-1] in getattr(_section_at(section)[0], "displaces", ()) and value is not None:
            earlier = self._chosen.get(section, origin)
            for key in section:
                place = place.get(key, {})
            for key in [key for key in place if earlier != origin and self._origins.get((*section, key)) == earlier]:
                del place[key]
            self._chosen[section] = origin
        self._origins[keys] = origin


def known_keys(model: type[BaseModel] = Config) -> Iterator[tuple[str, ...]]:
    """Every key that has a value of its own, as a path."""
    for name, field in model.model_fields.items():
        inner = _section(field.annotation)
        yield from ((name, *rest) for rest in known_keys(inner)) if inner else [(name,)]


def _section(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _section_at(keys: tuple[str, ...]) -> tuple[type[BaseModel] | None, bool]:
    """The section that `keys` lead to, if it is one, and whether it may be left out (null)."""
    section: type[BaseModel] | None = Config
    optional = False
    for key in keys:
        field = section.model_fields.get(key) if section else None
        section = _section(field.annotation) if field else None
        optional = field is not None and type(None) in get_args(field.annotation)
    return section, optional


class _OnceLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice in one place is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a word, not a list or a mapping; quote braces and brackets", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key.value}' stands there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_config_file(path: Path, stage: str | None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A file's settings without its stages, and its stages. Raises `ConfigError` when `stage` is none of them."""
    content = _content_of(path)
    stages = content.pop(STAGES, None) or {}
    if not isinstance(stages, dict) or any(not isinstance(settings, dict) for settings in stages.values()):
        raise ConfigError(
            f"{path}: '{STAGES}' is a mapping of names to settings; write for instance stages: {{smoke: {{minutes: 1}}}}"
        )
    if stage not in (None, FULL, *stages):
        raise ConfigError(f"{path}: it has no stage '{stage}'; it has: {', '.join([*map(str, stages), FULL])}")
    return content, stages


def _from_file(path: Path, stage: str | None) -> Iterator[Setting]:
    """The file's settings, then those of the stage. Those of the other stages are checked too."""
    content, stages = read_config_file(path, stage)
    for key, value in content.items():
        yield (str(key),), value, str(path)
    for name, settings in stages.items():
        origin = f"{path} stage {name}"
        for key, value in settings.items():
            for keys, _, _ in _flattened((str(key),), value, origin):
                _check_key(keys, origin)
            if name == stage:
                yield (str(key),), value, origin


def _content_of(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except OSError as error:
        raise ConfigError(f"the config file {path} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {path} is not UTF-8 text; give a YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values, not a {type(content).__name__}")
    return content or {}


def _flattened(keys: tuple[str, ...], value: Any, origin: str) -> Iterator[Setting]:
    """A section as its keys one by one, so that a later place can replace a single one. An empty section says nothing."""
    section, optional = _section_at(keys)
    if section and isinstance(value, dict):
        for key, inner in value.items():
            yield from _flattened((*keys, str(key)), inner, origin)
    elif isinstance(value, str) and (plain := getattr(section, "plain", None)):
        yield (*keys, plain), value, origin
    elif section and not (optional and value is None):
        if value is not None:
            name = ".".join(keys)
            raise ConfigError(
                f"{origin}: '{name}' is {value!r}, but holds keys of its own: {', '.join(section.model_fields)}"
            )
    else:
        yield keys, value, origin


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, text in sorted(environment.items()):
        keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if name.startswith(ENVIRONMENT_PREFIX) and (len(keys) > 1 or _resembles_a_setting(keys[0])):
            yield tuple(keys), _value(text, f"environment variable {name}"), f"environment variable {name}"


def _resembles_a_setting(name: str) -> bool:
    """Whether a variable without a section is meant as a setting: `DESKHAND_SED` is, `DESKHAND_TEST_FULL` is not."""
    return bool(difflib.get_close_matches(name, Config.model_fields, n=1, cutoff=0.75))


def _from_command_line(overrides: Sequence[str]) -> Iterator[Setting]:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {override}: write it as key=value, for instance --set trainer.learning_rate=1e-4")
        yield tuple(name.strip().split(".")), _value(text, f"--set {override}"), f"--set {override}"


def _value(text: str, origin: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{origin}: the value is not valid YAML; quote it") from None


def _check_key(keys: tuple[str, ...], origin: str) -> None:
    """Raise unless `keys` names a value, or a whole section that may be null."""
    known = list(known_keys())
    if any(key[: len(keys)] == keys for key in known):
        return
    valid = [".".join(key) for key in known]
    name = ".".join(keys)
    ends = difflib.get_close_matches(keys[-1], [key.rsplit(".", 1)[-1] for key in valid], n=1, cutoff=0.75)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6) or [
        key for key in valid if ends and key.rsplit(".", 1)[-1] == ends[0]
    ]
    mend = f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(Config.model_fields)}"
    raise ConfigError(f"{origin}: unknown key '{name}'; {mend}")


def _explained(error: ValidationError, settings: Sequence[Setting]) -> str:
    """The first error as one line, with the place where the setting was made."""
    first, *more = error.errors()
    keys = tuple(str(part) for part in first["loc"])
    origins = [origin for key, _, origin in settings if keys[: len(key)] == key or key[: len(keys)] == keys]
    origin = origins[-1] if origins else "settings"
    given = first["input"]
    value = "" if isinstance(given, dict) else f" is {given!r}, but"
    rest = f" (and {len(more)} more)" if more else ""
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{origin}: '{'.'.join(keys)}'{value} {message[:1].lower()}{message[1:]}{rest}"
