"""The content-addressed cache of the files that tasks download."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from pathlib import Path

import pytest
from serving import on_a_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from deskhand.cli.main import app
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.file_cache import (
    FileCache,
    default_folder,
    fetch_from_folder,
    fetch_from_web,
    prefetch,
    urls_of,
)

BASE = "https://files.example/datasets/x/resolve/main"
FIRST, SECOND, GOLD = f"{BASE}/calc/1/a%20b.xlsx", f"{BASE}/calc/1/b.txt", f"{BASE}/calc/1/gold.xlsx"


def write_task(folder: Path) -> Path:
    files = [{"url": url, "path": f"/home/user/{index}"} for index, url in enumerate((FIRST, SECOND, FIRST))]
    value = {
        "id": "1",
        "instruction": "x",
        "config": [{"type": "download", "parameters": {"files": files}}],
        "evaluator": {
            "func": "compare_table",
            "result": {"type": "vm_file", "path": "/home/user/0", "dest": "0.xlsx"},
            "expected": {"type": "cloud_file", "path": GOLD, "dest": "gold.xlsx"},
            "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
        },
    }
    path = folder / "examples" / "calc" / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value))
    return path


def test_content_is_stored_once_and_read_by_any_of_its_urls(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    assert not cache.has(FIRST)
    assert cache.store(FIRST, b"same") == cache.store(SECOND, b"same") == hashlib.sha256(b"same").hexdigest()
    assert cache.read(FIRST) == cache.read(SECOND) == b"same"
    assert len(list((tmp_path / "blobs").iterdir())) == 1
    cache.store(FIRST, b"new")
    assert (cache.read(FIRST), cache.read(SECOND)) == (b"new", b"same")


def test_a_missing_or_damaged_file_is_an_outage_with_a_fix(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    with pytest.raises(InfrastructureError, match="deskhand tasks prefetch"):
        cache.read(FIRST)
    digest = cache.store(FIRST, b"right")
    (tmp_path / "blobs" / digest).write_bytes(b"wrong")
    with pytest.raises(InfrastructureError, match="is damaged"):
        cache.read(FIRST)
    (tmp_path / "blobs" / digest).unlink()
    assert not cache.has(FIRST), "an address without its content is fetched again"


def test_a_task_may_name_local_files_of_one_folder_only(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    cache = FileCache(tmp_path / "cache", uploads=tmp_path / "in")
    assert cache.upload("a.txt") == b"inside"
    for name in ("../secret", str(tmp_path / "secret"), "link", "lost", "."):
        with pytest.raises(InfrastructureError, match="file not found in"):
            cache.upload(name)
    with pytest.raises(InfrastructureError, match="no uploads folder"):
        FileCache(tmp_path / "cache").upload("a.txt")


def test_a_cache_is_filled_from_a_mirror_or_from_osworlds_own_cache(tmp_path: Path) -> None:
    task = osworld.load(write_task(tmp_path)).task
    assert list(urls_of(task)) == [FIRST, SECOND, FIRST, GOLD]
    mirror = tmp_path / "mirror"
    (mirror / "calc" / "1").mkdir(parents=True)
    (mirror / "calc" / "1" / "a b.xlsx").write_bytes(b"first")
    kept = mirror / "cache" / "1" / f"{uuid.uuid5(uuid.NAMESPACE_URL, SECOND)}_b.txt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"second")
    cache = FileCache(tmp_path / "files")
    became = dict(prefetch(cache, [task], fetch_from_folder(mirror)))
    assert became == {FIRST: "stored", SECOND: "stored", GOLD: "missing"}
    assert (cache.read(FIRST), cache.read(SECOND)) == (b"first", b"second")
    assert dict(prefetch(cache, [task], lambda address: b"gold")) == {FIRST: "cached", SECOND: "cached", GOLD: "stored"}
    with pytest.raises(ConfigError, match="folder not found"):
        fetch_from_folder(tmp_path / "nowhere")


def test_a_mirror_gives_no_file_from_outside_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "mirror").mkdir()
    fetch = fetch_from_folder(tmp_path / "mirror")
    assert fetch(f"{BASE}/../../secret") is None
    assert fetch(f"{BASE}/..%2Fsecret") is None


def test_prefetch_fills_the_cache_and_lists_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path)
    mirror = tmp_path / "mirror" / "calc" / "1"
    mirror.mkdir(parents=True)
    (mirror / "a b.xlsx").write_bytes(b"first")
    folders = ["--from", str(tmp_path / "mirror"), "--cache-dir", str(tmp_path / "files")]
    words = ["tasks", "prefetch", "osworld", str(tmp_path), *folders]
    with pytest.raises(SystemExit) as ended:
        app(words, exit_on_error=False)
    assert ended.value.code == 2
    said = capsys.readouterr().out
    assert "1 files stored, 0 already cached, 2 missing" in said
    assert f"missing  {GOLD}" in said
    assert FileCache(tmp_path / "files").read(FIRST) == b"first"


def test_the_default_folder_is_the_users_unless_it_is_named() -> None:
    assert default_folder({"DESKHAND_CACHE_DIR": "/data"}) == Path("/data/files")
    assert default_folder({"HOME": "/home/x"}) == Path("/home/x/.cache/deskhand/files")
    assert default_folder({"XDG_CACHE_HOME": "/c", "HOME": "/home/x"}) == Path("/c/deskhand/files")


async def test_downloads_follow_redirects() -> None:
    async def moved(request: Request) -> Response:
        return RedirectResponse("/here")

    async def here(request: Request) -> Response:
        return Response(bytes(300_000))

    async with on_a_port(Starlette(routes=[Route("/moved", moved), Route("/here", here)])) as address:
        assert await asyncio.to_thread(fetch_from_web, f"{address}/moved") == bytes(300_000)
        assert await asyncio.to_thread(fetch_from_web, f"{address}/lost") is None


def test_an_unreachable_url_is_missing() -> None:
    assert fetch_from_web("http://127.0.0.1:9/a") is None
    assert fetch_from_web("not an address") is None
