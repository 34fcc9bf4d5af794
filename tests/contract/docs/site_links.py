"""What a built site links to and loads, read from its HTML. Used by `test_site.py`."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}
"""Tags and attributes whose target the browser fetches by itself."""
NOT_FETCHED = ("canonical", "next", "prev", "alternate")
"""`rel` of a link that the browser does not fetch."""


class Page(HTMLParser):
    """Anchors of a page, the targets of its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named and tag != "meta"}
        for name in ("href", "src"):
            if name in named and named.get("rel") not in NOT_FETCHED:
                (self.loads if (tag, name) in LOADS else self.links).append(named[name])


def read_site(folder: Path) -> dict[Path, Page]:
    """Every page of a site but the one for missing pages, whose links are absolute."""
    return {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}


def broken_links(pages: dict[Path, Page]) -> list[str]:
    """Links and loaded files that are not in the site, and anchors that no page has."""
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.name}: {link}: no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.name}: {link}: no such anchor")
    return broken


def loaded_from_elsewhere(pages: dict[Path, Page]) -> list[str]:
    """What a browser fetches from another host when it opens a page."""
    return [f"{path.name}: {load}" for path, page in pages.items() for load in page.loads if urlsplit(load).netloc]
