"""Checks `settings` (key=value files) and `browser` (Chromium's profile).

Both read files, so settings that a program has not written yet do not count.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import file_problems
from deskhand.tasks.checks.base import CheckModel, FactCheck, FileCheckModel, GuestPath, measure_file
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.task import CheckResult

PROFILE = ".config/chromium/Default"


class SettingsCheck(FileCheckModel):
    """The value of `key` in a `key=value` file, with or without `[sections]`.

    `equals` is its text; `absent: true` requires that there is no such key. Of a repeated key the last one counts.
    """

    find_problem = file_problems.settings_problem
    section: str | None = None
    key: str = Field(min_length=1)
    equals: str | None = None
    absent: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> SettingsCheck:
        if (self.equals is None) != self.absent:
            raise ValueError("set either equals or absent: true")
        return self


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
            checks.append(await self._measure_bookmarks(desktop, self.bookmarks))
        if self.visited:
            path = f"{self.profile}/History"
            checks.append(await measure_file(desktop, path, file_problems.history_problem, self.visited))
        if self.preference is not None:
            path, fields = f"{self.profile}/Preferences", self.preference.model_dump()
            checks.append(await measure_file(desktop, path, file_problems.json_problem, fields))
        return CheckResult(min(check.value for check in checks), "; ".join(check.detail for check in checks))

    async def _measure_bookmarks(self, desktop: StageableDesktop, wanted: list[str]) -> CheckResult:
        path = f"{self.profile}/Bookmarks"
        if not wanted and not await read_file(desktop, path):  # Chromium creates the file with the first bookmark
            return CheckResult(1.0, f"{path}: as expected")
        return await measure_file(desktop, path, file_problems.bookmarks_problem, wanted)
