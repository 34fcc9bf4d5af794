"""What the families choose from a start state: items, and names that no item has."""

from __future__ import annotations

from pathlib import PurePath

from deskhand.tasks.suites.web.content import FILES
from deskhand.tasks.suites.web.scenario import State, WebScenario

INBOX = "/mail/folder/Inbox"
OPEN = "/issues/list/open"


def having(items: list[State], **values: str) -> list[State]:
    """Return the items that have these values."""
    return [each for each in items if all(each[key] == value for key, value in values.items())]


def ranked(items: list[State], by: str, **values: str) -> list[State]:
    """Return the items that have these values, sorted by another value."""
    return sorted(having(items, **values), key=lambda each: each[by])


def other_item(items: list[State], item: State, key: str = "id") -> State:
    """Return the first item whose `key` is not that of `item`."""
    return next(each for each in items if each[key] != item[key])


def inbox(web: WebScenario) -> list[State]:
    return having(web.state["mail"]["messages"], folder="Inbox")


def open_issues(web: WebScenario) -> list[State]:
    return having(web.state["issues"]["issues"], state="open")


def new_goods(web: WebScenario) -> list[State]:
    """Return the goods that are not in the cart."""
    taken = {line["good"] for line in web.state["shop"]["cart"]}
    return [each for each in web.state["shop"]["goods"] if each["name"] not in taken]


def new_title(web: WebScenario, titles: tuple[str, ...], items: list[State]) -> str:
    """Return a title that no item has."""
    taken = {each["title"] for each in items}
    return web.pick([each for each in titles if each not in taken])


def new_file_name(web: WebScenario, suffix: str) -> str:
    """Return a name that no file has, whatever its suffix."""
    taken = {PurePath(each["name"]).stem for each in web.state["files"]["files"]}
    return f"{web.pick([each for each in FILES if each not in taken])}{suffix}"
