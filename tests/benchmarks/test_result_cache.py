"""Results of earlier runs are used as long as the sources are the same."""

from __future__ import annotations

from pathlib import Path

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
