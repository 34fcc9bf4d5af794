"""Results of earlier runs are used as long as the sources are the same."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import result_cache
from benchmarks.result_cache import ResultCache


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(result_cache, "ROOT", tmp_path)
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "one.py").write_text("1")
    return folder


def test_a_result_is_kept_until_a_source_changes(sources: Path) -> None:
    def opened() -> ResultCache:
        return ResultCache("audit", ["code/**/*.py"])

    opened().put("task", {"paid": 1})
    opened().put("other", {"paid": 0})
    assert (opened().get("task"), opened().get("other"), opened().get("third")) == ({"paid": 1}, {"paid": 0}, None)
    (sources / "notes.txt").write_text("no source")
    assert opened().get("task") == {"paid": 1}
    for name, text in (("one.py", "2"), ("two.py", "1")):
        (sources / name).write_text(text)
        assert opened().get("task") is None
    (sources / "two.py").unlink()
    (sources / "one.py").write_text("1")
    assert opened().get("task") == {"paid": 1}
    (sources / "one.py").rename(sources / "other.py")
    assert opened().get("task") is None


def test_a_change_of_one_family_leaves_the_results_of_the_others(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"shop": "from code import layout, other_package", "mail": "import os", "layout": "WIDTH = 1", "three": ""}
    for name, text in files.items():
        (sources / f"{name}.py").write_text(text)
    for name in ("shop", "mail"):
        module = ModuleType(f"code.{name}")
        module.__dict__["WAYS"] = {f"{name}_one": None, f"{name}_two": None}
        monkeypatch.setitem(sys.modules, f"code.{name}", module)

    def digests() -> list[str]:
        result_cache.module_files.cache_clear()
        return [result_cache.family_digest(name, "code") for name in ("shop_one", "shop_two", "mail_one", "no_family")]

    before = digests()
    assert before[0] == before[1]
    assert len(set(before)) == 3
    for changed, expected in (
        ("shop", [True, True, False, True]),
        ("layout", [True, True, False, True]),
        ("mail", [False, False, True, True]),
        ("three", [False, False, False, True]),
    ):
        (sources / f"{changed}.py").write_text(f"{files[changed]}\n# changed")
        now = digests()
        assert [old != new for old, new in zip(before, now, strict=True)] == expected, changed
        before = now
    result_cache.module_files.cache_clear()
