"""The Hugging Face hub without a network: one repository with the files of a folder, and what was asked of it."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

NAME = "somebody/a-model"


class FakeHub:
    """Stands in for the functions of `huggingface_hub` that Deskhand calls."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository, self.cache = repository, cache
        self.asked: list[tuple[str, ...]] = []
        """The patterns of each download, in order."""

    def snapshot_download(self, source: str, *, allow_patterns: list[str]) -> str:
        if source != NAME:
            raise OSError(f"404: {source}")
        self.asked.append(tuple(allow_patterns))
        self.cache.mkdir(exist_ok=True)
        for file in self.repository.iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copyfile(file, self.cache / file.name)
        return str(self.cache)

    def model_info(self, source: str, *, files_metadata: bool) -> Any:
        files = [SimpleNamespace(rfilename=file.name, size=file.stat().st_size) for file in self.repository.iterdir()]
        return SimpleNamespace(sha="0123", siblings=files)

    def cached(self, source: str, name: str, *, revision: str) -> str | None:
        return str(self.cache / name) if (self.cache / name).is_file() else None

    @property
    def has_weights(self) -> bool:
        """Whether weights were downloaded."""
        return any(fnmatch.fnmatch("model.safetensors", pattern) for asked in self.asked for pattern in asked)


def install(monkeypatch: pytest.MonkeyPatch, repository: Path, cache: Path) -> FakeHub:
    """Put a hub with the files of `repository` under `NAME` in place of the real one."""
    hub = FakeHub(repository, cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", hub.cached)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, *args, **kwargs: hub.model_info(*args, **kwargs)
    )
    return hub
