"""Checks `settings` (key=value files) and `browser` (Chromium's profile).

Both read files, so settings that a program has not written yet do not count.
"""

from __future__ import annotations

import configparser
import sqlite3
from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.checks.base import (
    CheckModel,
    FactCheck,
    FileCheckModel,
    GuestPath,
    InvalidDocument,
    measure_file,
    quoted,
)
from deskhand.tasks.checks.database import query
from deskhand.tasks.checks.files import json_of, text_of, values_equal
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.task import CheckResult

PROFILE = ".config/chromium/Default"
_TOP = "\0top"
_VISITED = "select url from urls"


class SettingsCheck(FileCheckModel):
    """The value of `key` in a `key=value` file, with or without `[sections]`.

    `equals` is its text; `absent: true` requires that there is no such key. Of a repeated key the last one counts.
    """

    section: str | None = None
    key: str = Field(min_length=1)
    equals: str | None = None
    absent: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> SettingsCheck:
        if (self.equals is None) != self.absent:
            raise ValueError("set either equals or absent: true")
        return self

    def find_problem(self, data: bytes) -> str | None:
        parser = configparser.RawConfigParser(
            strict=False, delimiters=("=",), allow_no_value=True, default_section="\0none"
        )
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
        try:
            parser.read_string(f"[{_TOP}]\n{text_of(data)}")
        except configparser.Error as error:
            raise InvalidDocument(f"invalid key=value file: {' '.join(str(error).split())[:200]}") from error
        section = self.section if self.section is not None else _TOP
        is_set = parser.has_option(section, self.key)
        found = parser.get(section, self.key) if is_set else None
        where = f"{self.key} of [{self.section}]" if self.section is not None else self.key
        if self.absent:
            return f"{where} is {found!r}" if is_set else None
        if not is_set:
            return f"has no {where}"
        return None if (found or "") == self.equals else f"{where} is {found!r}"


class Preference(CheckModel):
    """A value of Chromium's preferences: the keys from the root, and the value."""

    at: list[str | int] = Field(min_length=1)
    equals: Any


class BrowserCheck(FactCheck):
    """Chromium's profile: the URLs of all `bookmarks` (any order), `visited` URLs and one `preference`.

    Chromium writes its profile with a delay of seconds: set `limits.settle_grace_s`.
    """

    needs_one_of = ("bookmarks", "visited", "preference")
    profile: GuestPath = PROFILE
    bookmarks: list[str] | None = None
    visited: list[str] = Field(default_factory=list)
    preference: Preference | None = None

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        checks = []
        if self.bookmarks is not None:
            checks.append(await self._bookmarks(desktop, sorted(self.bookmarks)))
        if self.visited:
            checks.append(await measure_file(desktop, f"{self.profile}/History", self._history))
        if (wanted := self.preference) is not None:
            checks.append(
                await measure_file(desktop, f"{self.profile}/Preferences", lambda data: _preference(data, wanted))
            )
        return CheckResult(min(check.value for check in checks), "; ".join(check.detail for check in checks))

    async def _bookmarks(self, desktop: StageableDesktop, wanted: list[str]) -> CheckResult:
        path = f"{self.profile}/Bookmarks"
        data = await read_file(desktop, path) or b"{}"  # Chromium creates the file with the first bookmark
        try:
            found = sorted(bookmark_urls(json_of(data)))
        except InvalidDocument as error:
            return CheckResult(0.0, f"{path}: {error}")
        problem = None if found == wanted else f"the bookmarks are {quoted(found)}"
        return CheckResult(float(problem is None), f"{path}: {problem or 'as expected'}")

    def _history(self, data: bytes) -> str | None:
        try:
            found = {str(url) for (url,) in query(data, b"", _VISITED)}
        except (sqlite3.Error, ValueError) as error:
            raise InvalidDocument(f"invalid history: {error}") from error
        missing = [url for url in self.visited if url not in found]
        return f"{quoted(missing[0])} was not visited" if missing else None


def bookmark_urls(node: Any) -> Iterator[str]:
    """Yield the URLs of all bookmarks in Chromium's file, at any depth."""
    if isinstance(node, dict):
        if node.get("type") == "url":
            yield str(node.get("url"))
        else:
            for value in node.values():
                yield from bookmark_urls(value)
    elif isinstance(node, list):
        for value in node:
            yield from bookmark_urls(value)


def _preference(data: bytes, wanted: Preference) -> str | None:
    value = json_of(data)
    for key in wanted.at:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return f"has nothing at {key!r}"
    return None if values_equal(value, wanted.equals) else f"has {quoted(value)}"
