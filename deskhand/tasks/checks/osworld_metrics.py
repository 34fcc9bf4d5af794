"""Reimplementations of small, pure OSWorld metric functions, for machines without OSWorld's evaluators.

Used by `deskhand.osworld`; start with `score_in_subprocess`. Metrics receive what OSWorld's receive: text, objects,
and files as bytes (None: missing file, score 0).

Invariant: an unavailable metric or rule raises `EvaluatorError`, never scores 0; nothing of the guest is executed.
"""

from __future__ import annotations

import ast
import json
import pickle
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

from deskhand.errors import EvaluatorError
from deskhand.tasks.subprocess_call import call_in_subprocess

Options = dict[str, Any]
Metric = Callable[[Any, Any, Options], float]
_VLC_DEFAULTS = {
    "check_qt_bgcone": ("qt-bgcone", "1"),
    "check_qt_max_volume": ("qt-max-volume", "125"),
    "check_qt_minimal_view": ("qt-minimal-view", "0"),
    "check_one_instance_when_started_from_file": ("one-instance-when-started-from-file", "1"),
}
"""VLC settings by metric, with VLC's default for a missing setting."""
_ACCEPT_NONE = ("exact_match", "literal_match", "match_in_list")
"""Metrics for which None may be the expected result."""
_REGISTRY = "{http://openoffice.org/2001/registry}"


def available() -> frozenset[str]:
    """Return the names of the available metrics."""
    return frozenset(_METRICS)


def score(metric: str, result: Any, expected: Any, options: Options | None = None) -> float:
    """Return the metric's score in [0, 1]. `expected` is the result of the task's `expected` getter.

    Raises `EvaluatorError` for an unavailable metric and for invalid rules.
    """
    if metric not in _METRICS:
        raise EvaluatorError(f"metric {metric!r} is not available; install OSWorld's evaluators")
    if result is None and metric not in _ACCEPT_NONE:
        return 0.0
    try:
        return _METRICS[metric](result, expected, options or {})
    except (KeyError, TypeError, AttributeError, re.error) as error:
        raise EvaluatorError(f"metric {metric!r}: invalid rules: {type(error).__name__} {error}") from error


def score_in_subprocess(metric: str, result: Any, expected: Any, options: Options | None = None) -> float:
    """Return `score`, computed in a subprocess. Blocks. Raises `InvalidDocument` for data that exceeds its limits."""
    return float(call_in_subprocess(_score_packed, pickle.dumps(result), metric, expected, options))


def _score_packed(result: bytes, metric: str, expected: Any, options: Options | None) -> float:
    return score(metric, pickle.loads(result) if result else None, expected, options)


def _text(data: Any) -> str | None:
    """Return a file's text, or None if it is missing or not UTF-8."""
    try:
        return data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        return None


def _json(data: Any, *, skip_first_line: bool = False) -> Any:
    text = _text(data)
    if text is None:
        return None
    try:
        return json.loads(text.partition("\n")[2] if skip_first_line else text)
    except (ValueError, RecursionError):
        return None


def _include_exclude(result: Any, rules: Any, _: Options) -> float:
    wanted, unwanted = rules.get("include", []), rules.get("exclude", [])
    return float(all(each in result for each in wanted) and not any(each in result for each in unwanted))


def _literal(result: Any, expected: Any, options: Options) -> float:
    def plain(value: Any) -> str:
        return str(value).lower() if options.get("ignore_case", False) else str(value)

    if options.get("type", "str") == "str":
        return float(plain(result) == plain(expected))
    if options["type"] != "list":
        raise EvaluatorError(f"metric 'literal_match' unknown type {options['type']!r}")
    both = isinstance(result, list | tuple) and isinstance(expected, list | tuple)
    return float(both and [plain(each) for each in result] == [plain(each) for each in expected])


def _list(result: Any, rules: Any, _: Options) -> float:
    text = _text(result)
    if text is None:
        return 0.0
    lines = text.splitlines(keepends=True)
    wanted = [any(re.search(pattern, line) for line in lines) for pattern in rules.get("expect", [])]
    unwanted = [any(re.search(pattern, line) for line in lines) for pattern in rules.get("unexpect", [])]
    return float(all(wanted) and not any(unwanted))


def _text_file(result: Any, expected: Any, options: Options) -> float:
    def plain(text: str) -> str:
        if options.get("ignore_blanks", False):
            text = re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", text).strip())
        return text.lower() if options.get("ignore_case", False) else text

    found, wanted = _text(result), _text(expected)
    if wanted is None:
        raise EvaluatorError("metric 'compare_text_file': the expected file has no text")
    return float(bool(found) and plain(str(found)) == plain(wanted))


def _contains_all(result: Any, rules: Any, _: Options) -> float:
    text = _text(result)
    return float(text is not None and all(piece in text for piece in rules["expected"]))


def _same_text(result: Any, rules: Any, _: Options) -> float:
    return float(bool(result) and _text(result) == rules["expected"])


def _settings(result: Any, rules: Any, _: Options) -> float:
    found = _json(result)
    wanted = rules["expected"].items()
    return float(isinstance(found, dict) and all(key in found and found[key] == value for key, value in wanted))


def _keybindings(result: Any, rules: Any, _: Options) -> float:
    """Compare a list; the editor may have put a comment in the first line."""
    read = [_json(result), _json(result, skip_first_line=True)]
    lists = [found for found in read if isinstance(found, list)]
    return float(bool(lists) and rules["expected"] in lists[0])


def _extension(result: Any, rules: Any, _: Options) -> float:
    if rules["type"] not in ("contain", "not_contain"):
        raise EvaluatorError(f"metric 'is_extension_installed': unknown type {rules['type']!r}")
    return float((rules["expected"] in result) == (rules["type"] == "contain"))


def _gimp_setting(result: Any, rules: Any, _: Options) -> float:
    """Compare lines such as `(undo-levels 100)`; a key of two words is the first two words of a line."""
    keys = [rules["key"]] if isinstance(rules["key"], str) else rules["key"]
    for line in (_text(result) or "").splitlines():
        words = [] if line.startswith("#") else line.strip().lstrip("(").rstrip(")").split()
        if words and words[: len(keys)] == keys and words[-1] == rules["value"]:
            return 1.0
    return 0.0


def _vlc_setting(key: str, default: str, wanted: str) -> Metric:
    def metric(result: Any, rules: Any, _: Options) -> float:
        text = _text(result)
        if text is None:
            return 0.0
        said = [line.split("=")[-1].strip() for line in text.split("\n") if f"{key}=" in line]
        return float((said[-1] if said else default) == str(rules[wanted]))

    return metric


def _vlc_recordings(result: Any, rules: Any, _: Options) -> float:
    lines = [
        line for line in (_text(result) or "").split("\n") if "input-record-path" in line and not line.startswith("#")
    ]
    return float(bool(lines) and lines[0].split("=")[-1].strip() == rules["recording_file_path"])


def _font_size(result: Any, rules: Any, _: Options) -> float:
    size = result.get("default_font_size") if isinstance(result, dict) else None
    if not isinstance(size, int | float):
        return 0.0
    if rules["type"] == "value":
        return float(size == rules["value"])
    if rules["type"] != "range":
        raise EvaluatorError(f"metric 'check_font_size': unknown type {rules['type']!r}")
    return float(rules["min"] < size < rules["max"])


def _bookmarks(result: Any, rules: Any, _: Options) -> float:
    kinds = {
        "bookmark_bar_folders_names": ("folder", "name", "names"),
        "bookmark_bar_websites_urls": ("url", "url", "urls"),
    }
    if rules["type"] not in kinds:
        raise EvaluatorError(f"metric 'is_expected_bookmarks': unknown type {rules['type']!r}")
    kind, what, wanted = kinds[rules["type"]]
    expected = set(rules[wanted])
    try:
        found = {each[what] for each in result["bookmark_bar"]["children"] if each["type"] == kind}
    except (KeyError, TypeError):
        return 0.0
    return float(found == expected)


def _url_matches(result: Any, rules: Any, _: Options) -> float:
    url = result.get("url") if isinstance(result, dict) else result
    return float(isinstance(url, str) and bool(url) and all(re.search(each, url) for each in rules["expected"]))


def _names_in_folder(result: Any, rules: Any, _: Options) -> float:
    try:
        found = sorted(node["name"] for node in result["children"])
    except (KeyError, TypeError):
        return 0.0
    return float(found == sorted(rules["expected"]))


def _favorites(result: Any, rules: Any, _: Options) -> float:
    try:
        found = ast.literal_eval(str(result).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return 0.0
    return float(
        isinstance(found, list)
        and len(found) == len(rules["expected"])
        and set(map(str, found)) == set(rules["expected"])
    )


def _utc(result: Any, _: Any, __: Options) -> float:
    lines = str(result).split("\n")
    return float(len(lines) > 3 and lines[3].endswith("+0000)"))


def _contains_texts(result: Any, rules: Any, _: Options) -> float:
    wanted = rules["expected"] if isinstance(rules["expected"], list) else [rules["expected"]]
    return float(all(each in result for each in wanted))


def _slides_view(result: Any, _: Any, __: Options) -> float:
    root = _xml(result)
    return float(root is not None and any(node.get("name") == "Slides View" for node in root.iter("document-frame")))


def _autosave(result: Any, rules: Any, _: Options) -> float:
    root = _xml(_text(result))
    for item in () if root is None else root.findall(".//item"):
        if item.get(f"{_REGISTRY}path") == "/org.openoffice.Office.Common/Save/Document":
            for entry in item.findall(".//prop"):
                if entry.get(f"{_REGISTRY}name") == "AutoSaveTimeIntervall":
                    return float((entry.findtext(".//value") or "").strip() == str(rules["minutes"]))
    return 0.0


def _xml(text: str | None) -> ElementTree.Element | None:
    """Return the root of a document without a document type, whose entities could expand without bound."""
    if text is None or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None


_METRICS: dict[str, Metric] = {
    "exact_match": lambda result, rules, _: float(result == rules["expected"]),
    "match_in_list": lambda result, rules, _: float(result in rules["expected"]),
    "is_in_list": lambda result, rules, _: float(rules["expected"] in result),
    "check_include_exclude": _include_exclude,
    "literal_match": _literal,
    "check_list": _list,
    "compare_text_file": _text_file,
    "file_contains": _contains_all,
    "compare_config": _same_text,
    "check_json_settings": _settings,
    "check_json_keybindings": _keybindings,
    "is_extension_installed": _extension,
    "check_config_status": _gimp_setting,
    **{
        name: _vlc_setting(*about, wanted=f"expected_{about[0].replace('-', '_')}")
        for name, about in _VLC_DEFAULTS.items()
    },
    "is_vlc_recordings_folder": _vlc_recordings,
    "check_font_size": _font_size,
    "is_expected_bookmarks": _bookmarks,
    "is_expected_url_pattern_match": _url_matches,
    "check_moved_jpgs": _names_in_folder,
    "check_gnome_favorite_apps": _favorites,
    "is_utc_0": _utc,
    "is_in_vm_clickboard": _contains_texts,
    "check_left_panel": _slides_view,
    "check_auto_saving_time": _autosave,
}
