"""Load settings from a YAML file, the environment and the command line; entry point: `load_config`.

A file contains `trainer: {learning_rate: 1e-4}`. The environment (`DESKHAND_TRAINER__LEARNING_RATE=1e-4`) overrides the
file, and `--set trainer.learning_rate=1e-4` overrides both. `profiles` in a file are named sets of overrides;
`--profile` selects one. Every error is one line with the origin of the setting, its key and a fix.
`deskhand.config.schema` defines the settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from deskhand.config.schema import Config
from deskhand.config.shipped import find_config, list_configs
from deskhand.errors import ConfigError

__all__ = ["Config", "config_of_run", "known_keys", "load_config", "read_config_file"]
ENVIRONMENT_PREFIX = "DESKHAND_"
OPTIONS = ("agent", "options")
"""Below it every key is allowed: these are the arguments of the user's own agent."""
AGENT_SET = "agent_set"
"""Key of a run's metadata: the settings of the agent that its user set; the others were chosen to fit the model."""
PROFILES, FULL = "profiles", "full"
RESERVED = ("DESKHAND_SERVER_API_KEY",)
"""Variables with the prefix that are never settings, so that no error prints their value."""

Setting = tuple[tuple[str, ...], Any, str]
"""The path of keys, the value, and its origin."""


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    base: tuple[Mapping[str, Any], str] | None = None,
    profile: str | None = None,
) -> Config:
    """Load the settings, from the lowest precedence to the highest: `base`, file, environment, overrides.

    `path`: a file, or the name of a shipped config; `base`: settings of a stored run, and their origin for messages;
    `overrides`: settings as `key.key=value`; `profile`: profile of the config file, `full` is the file without one.
    Raises `ConfigError` for the first invalid setting.
    """
    path = find_config(path) if path is not None else None
    if profile is not None and path is None:
        raise ConfigError(f"--profile {profile}: profiles belong to a config file; pass the file, or remove --profile")
    stored = [((key,), value, base[1]) for key, value in base[0].items()] if base else []
    sources = [
        *stored,
        *(_from_file(path, profile) if path else ()),
        *_from_environment(environment or {}),
        *_from_command_line(overrides),
    ]
    settings = [setting for keys, value, origin in sources for setting in _flattened(keys, value, origin)]
    for keys, _, origin in settings:
        _check_key(keys, origin)
    settings, values = _without_displaced(settings), dict[str, Any]()
    for keys, value, _ in settings:
        section = values
        for key in keys[:-1]:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[keys[-1]] = value
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_message(error, settings)) from None


def config_of_run(metadata: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the settings of a run, with `overrides`. Raises `ConfigError` for another version's settings.

    Of the agent's settings, those count as set that the run's user set (`AGENT_SET`) or `overrides` set.
    """
    config = load_config(None, overrides, base=(metadata.get("config", {}), f"{folder}/run.sqlite"))
    if AGENT_SET not in metadata:
        return config
    given = (
        setting for keys, value, origin in _from_command_line(overrides) for setting in _flattened(keys, value, origin)
    )
    return with_agent_set(config, {*metadata[AGENT_SET], *(keys[1] for keys, _, _ in given if keys[0] == "agent")})


def with_agent_set(config: Config, names: Iterable[str]) -> Config:
    """Return the config with exactly these settings of the agent counted as set (`model_fields_set`)."""
    values = {name: getattr(config.agent, name) for name in type(config.agent).model_fields}
    agent = type(config.agent).model_construct(set(names) & values.keys(), **values)
    return config.model_copy(update={"agent": agent})


def _without_displaced(settings: list[Setting]) -> list[Setting]:
    """Drop what an origin set in a section if a later one sets one of its mutually exclusive keys (`displaces`)."""
    chosen: dict[tuple[str, ...], list[str]] = {}
    for (*section, key), value, origin in settings:
        if value is not None and key in getattr(_section_at(tuple(section))[0], "displaces", ()):
            chosen.setdefault(tuple(section), []).append(origin)
    displaced = {(section, origin) for section, found in chosen.items() for origin in found if origin != found[-1]}
    return [setting for setting in settings if (setting[0][:-1], setting[2]) not in displaced]


def known_keys(model: type[BaseModel] = Config) -> Iterator[tuple[str, ...]]:
    """Iterate over the paths of all keys that hold a value."""
    for attribute, field in model.model_fields.items():
        name, inner = field.alias or attribute, _section(field.annotation)
        yield from ((name, *rest) for rest in known_keys(inner)) if inner else [(name,)]


def _section(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _section_at(keys: tuple[str, ...]) -> tuple[type[BaseModel] | None, bool]:
    """The section at `keys`, if there is one, and whether it may be null."""
    section: type[BaseModel] | None = Config
    optional = False
    for key in keys:
        field = section.model_fields.get(key) if section else None
        section = _section(field.annotation) if field else None
        optional = field is not None and type(None) in get_args(field.annotation)
    return section, optional


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "keys must be strings; quote braces and brackets", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key.value}'", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_config_file(path: Path, profile: str | None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a file's settings without its profiles, and the profiles. Raises `ConfigError` if `profile` is unknown."""
    content = _read_yaml(path)
    profiles = content.pop(PROFILES, None) or {}
    if not isinstance(profiles, dict) or any(not isinstance(settings, dict) for settings in profiles.values()):
        raise ConfigError(
            f"{path}: '{PROFILES}' must map names to settings, for example profiles: {{smoke: {{max_minutes: 1}}}}"
        )
    if profile not in (None, FULL, *profiles):
        raise ConfigError(f"{path}: unknown profile '{profile}'; available: {', '.join([*map(str, profiles), FULL])}")
    return content, profiles


def _from_file(path: Path, profile: str | None) -> Iterator[Setting]:
    """Settings of the file, then of the profile. The keys of other profiles are checked too."""
    content, profiles = read_config_file(path, profile)
    for key, value in content.items():
        yield (str(key),), value, str(path)
    for name, settings in profiles.items():
        origin = f"{path} profile {name}"
        for key, value in settings.items():
            for keys, _, _ in _flattened((str(key),), value, origin):
                _check_key(keys, origin)
            if name == profile:
                yield (str(key),), value, origin


def _read_yaml(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        names = f"check the path, or use a shipped config: {', '.join(list_configs())}"
        raise ConfigError(f"{path}: cannot read the config file: {error.strerror}; {names}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the config file is not UTF-8 text; use a YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: invalid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise ConfigError(f"{path}: a config file must be a mapping of keys to values, got a {type(content).__name__}")
    return content or {}


def _flattened(keys: tuple[str, ...], value: Any, origin: str) -> Iterator[Setting]:
    """Split a section into its keys, so that a later origin can override a single one. Empty sections set nothing."""
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
                f"{origin}: {name}: must be a mapping with the keys {', '.join(section.model_fields)}, got {value!r}"
            )
    else:
        yield keys, value, origin


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in RESERVED:
            continue
        keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(keys) > 1 or _resembles_setting(keys[0]):
            yield tuple(keys), _value(text, f"environment variable {name}"), f"environment variable {name}"


def _resembles_setting(name: str) -> bool:
    """Whether a variable without a section is probably a setting: `DESKHAND_SED` is, `DESKHAND_TEST_FULL` is not."""
    return bool(difflib.get_close_matches(name, Config.model_fields, n=1, cutoff=0.75))


def _from_command_line(overrides: Sequence[str]) -> Iterator[Setting]:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {override}: expected key=value, for example --set trainer.learning_rate=1e-4")
        yield tuple(name.strip().split(".")), _value(text, f"--set {override}"), f"--set {override}"


def _value(text: str, origin: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{origin}: invalid YAML in the value; quote it") from None


def _check_key(keys: tuple[str, ...], origin: str) -> None:
    """Raise `ConfigError` unless `keys` names a value, or a section that may be null."""
    known = list(known_keys())
    if any(key[: len(keys)] == keys for key in known) or keys[:2] == OPTIONS:
        return
    valid = [".".join(key) for key in known]
    name = ".".join(keys)
    ends = difflib.get_close_matches(keys[-1], [key.rsplit(".", 1)[-1] for key in valid], n=1, cutoff=0.75)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6) or [
        key for key in valid if ends and key.rsplit(".", 1)[-1] == ends[0]
    ]
    hint = f"did you mean '{close[0]}'?" if close else f"top-level keys: {', '.join(Config.model_fields)}"
    raise ConfigError(f"{origin}: unknown key '{name}'; {hint}")


def _message(error: ValidationError, settings: Sequence[Setting]) -> str:
    """The first error in one line, with the origin of the setting."""
    first, *more = error.errors()
    keys = tuple(str(part) for part in first["loc"])
    origins = [origin for key, _, origin in settings if keys[: len(key)] == key or key[: len(keys)] == keys]
    origin = origins[-1] if origins else "settings"
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    if not isinstance(first["input"], dict):  # an error of a whole section names its keys itself
        got = "" if repr(first["input"]) in message else f", got {first['input']!r}"
        message = f"{'.'.join(keys)}: {message}{got}"
    return f"{origin}: {message}{f' (and {len(more)} more)' if more else ''}"
