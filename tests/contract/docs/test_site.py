"""The documentation as a site: it builds without a warning, and its links, anchors and API reference are complete."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml
from environments import python_of
from site_links import Page, broken_links, loaded_from_elsewhere, read_site

import deskhand
from deskhand.config.schema import Config
from deskhand.config.trainer import Section

ROOT = Path(__file__).parents[3]


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """mkdocs counts no warnings with --quiet, so that --strict would accept everything."""
    words = ["-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [str(python_of("docs")), *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site").resolve()
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return read_site(site)


def test_every_page_is_built(site) -> None:
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if path.name != "README.md"]
    assert len(sources) > 50
    assert not [path for path in sources if not (site / path.with_suffix(".html")).is_file()]


def test_every_link_and_anchor_of_the_site_leads_somewhere(pages) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert not broken_links(pages)


def test_the_pages_load_nothing_from_another_host(site, pages) -> None:
    assert sum(len(page.loads) for page in pages.values()) > 100
    assert not loaded_from_elsewhere(pages)
    sheets = [*site.rglob("*.css")]
    assert sheets
    assert not [sheet for sheet in sheets if re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text())]


def in_navigation(entry: object) -> set[str]:
    """Pages that a part of the navigation names."""
    if isinstance(entry, str):
        return {entry}
    parts = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else []
    return {page for part in parts for page in in_navigation(part)}


def test_the_navigation_has_every_page_of_the_first_level() -> None:
    named = in_navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert not {path.name for path in (ROOT / "docs").glob("*.md")} - named


def test_the_reference_has_everything_that_is_exported(site, pages) -> None:
    exported = {f"deskhand.{name}" for name in deskhand.__all__ if name != "__version__"}
    assert not exported - pages[site / "api.html"].anchors


def test_the_reference_has_every_setting(site, pages) -> None:
    anchors = pages[site / "settings.html"].anchors
    classes, keys = {Config}, set()
    while classes:
        kind = classes.pop()
        own = [name for name in kind.__annotations__ if name in kind.model_fields]
        keys |= {f"{kind.__module__}.{kind.__name__}.{name}" for name in own}
        nested = [
            nested for field in kind.model_fields.values() for nested in (field.annotation, *get_args(field.annotation))
        ]
        classes |= {each for each in nested if isinstance(each, type) and issubclass(each, Section)}
    assert len(keys) > 150
    assert not keys - anchors


def test_a_broken_link_a_missing_anchor_and_a_foreign_script_are_found(tmp_path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="one"></h1><a href="b.html#two"></a><a href="#one"></a><a href="c.html"></a>'
    )
    (tmp_path / "b.html").write_text('<script src="//host.example/x.js"></script><a href="https://host.example/"></a>')
    pages = read_site(tmp_path)
    assert broken_links(pages) == ["a.html: b.html#two: no such anchor", "a.html: c.html: no such file"]
    assert loaded_from_elsewhere(pages) == ["b.html: //host.example/x.js"]


def test_a_link_to_a_page_that_is_not_there_fails_the_build(tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[other](other.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "other.md" in done.stdout + done.stderr
