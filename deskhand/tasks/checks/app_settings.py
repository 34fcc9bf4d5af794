"""Checks of what programs keep: settings in files of keys and values, and Chromium's profile. Invariant: they are read from the
disk by the host, so that what a program has not written yet does not count.
"""

from __future__ import annotations

import configparser
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from deskhand.tasks.checks.base import UNREADABLE, CheckModel, GuestPath, InvalidDocument, measure_file, quoted
from deskhand.tasks.checks.database import query
from deskhand.tasks.checks.files import text_of, values_equal
from deskhand.tasks.task import CheckResult, StagedDesktopLike

PROFILE = ".config/chromium/Default"
_TOP = "\0top"
_VISITED = "select url from urls"


class SettingsCheck(CheckModel):
    """The value of `key` in a file of `key=value` lines, with `[sections]` or without: the text `equals`, or with `absent` that
    there is no such key. Of a key that stands there twice the last one counts."""

    path: GuestPath
    section: str | None = None
    key: str = Field(min_length=1)
    equals: str | None = None
    absent: bool = False

    @model_validator(mode="after")
    def _asks(self) -> SettingsCheck:
        if (self.equals is None) != self.absent:
            raise ValueError("give either equals or absent: true")
        return self

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        return await measure_file(desktop, self.path, self._look)

    def _look(self, data: bytes) -> str | None:
        parser = configparser.RawConfigParser(
            strict=False, delimiters=("=",), allow_no_value=True, default_section="\0none"
        )
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
        try:
            parser.read_string(f"[{_TOP}]\n{text_of(data)}")
        except configparser.Error as error:
            raise InvalidDocument(f"no file of settings: {' '.join(str(error).split())[:200]}") from error
        section = self.section if self.section is not None else _TOP
        found = parser.get(section, self.key) if parser.has_option(section, self.key) else None
        there = parser.has_option(section, self.key)
        where = f"{self.key} of [{self.section}]" if self.section is not None else self.key
        if self.absent:
            return f"{where} is {found!r}" if there else None
        if not there:
            return f"has no {where}"
        return None if (found or "") == self.equals else f"{where} is {found!r}"


class Preference(CheckModel):
    """A value of Chromium's preferences: keys from the top, and what it is."""

    at: list[str | int] = Field(min_length=1)
    equals: Any


class BrowserCheck(CheckModel):
    """What Chromium has written into its profile: the addresses of all `bookmarks` in any order, addresses that were `visited`,
    and one `preference`. It writes some seconds late (`limits.late_s`)."""

    profile: GuestPath = PROFILE
    bookmarks: list[str] | None = None
    visited: list[str] = Field(default_factory=list)
    preference: Preference | None = None

    @model_validator(mode="after")
    def _asks(self) -> BrowserCheck:
        if self.bookmarks is None and not self.visited and self.preference is None:
            raise ValueError("give at least one of bookmarks, visited, preference")
        return self

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
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

    async def _bookmarks(self, desktop: StagedDesktopLike, wanted: list[str]) -> CheckResult:
        path = f"{self.profile}/Bookmarks"
        try:
            data = await desktop.pull(path)
        except UNREADABLE:
            data = b"{}"  # Chromium makes the file with the first bookmark
        try:
            found = sorted(addresses(_json(data)))
        except InvalidDocument as error:
            return CheckResult(0.0, f"{path}: {error}")
        return CheckResult(
            float(found == wanted), f"{path}: {'as asked' if found == wanted else f'the bookmarks are {quoted(found)}'}"
        )

    def _history(self, data: bytes) -> str | None:
        try:
            found = {str(address) for (address,) in query(data, b"", _VISITED)}
        except (sqlite3.Error, ValueError) as error:
            raise InvalidDocument(f"no history: {error}") from error
        missing = [address for address in self.visited if address not in found]
        return f"{quoted(missing[0])} was not visited" if missing else None


def addresses(kept: Any) -> Iterator[str]:
    """Of all bookmarks in Chromium's file, at any depth that it makes."""
    if isinstance(kept, dict):
        if kept.get("type") == "url":
            yield str(kept.get("url"))
        else:
            for value in kept.values():
                yield from addresses(value)
    elif isinstance(kept, list):
        for value in kept:
            yield from addresses(value)


def _json(data: bytes) -> Any:
    try:
        return json.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"no JSON: {error}") from error


def _preference(data: bytes, wanted: Preference) -> str | None:
    value = _json(data)
    for key in wanted.at:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return f"has nothing at {key!r}"
    return None if values_equal(value, wanted.equals) else f"has {quoted(value)}"
