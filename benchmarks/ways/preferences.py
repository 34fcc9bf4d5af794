"""Ways to do the families of `basics` in preferences."""

from __future__ import annotations

import re

from benchmarks.ways.person import Act, Ways, click, gone, menu, rest, wait
from deskhand.tasks.suites.basics.preferences import FileManagerScenario, Option, PlayerScenario, PreferencesScenario
from deskhand.tasks.task import Task


def asked(task: Task, scenario: type[PreferencesScenario]) -> list[Option]:
    """The options that are to be changed."""
    wishes = re.findall(r'turn (?:on|off) "([^"]*)"', task.instruction)
    return [option for wish in wishes for option in scenario.options if option.label == wish]


def changed(options: list[Option], scenario: type[PreferencesScenario], *, label: int = 0, times: int = 1) -> list[Act]:
    """Click on the boxes, or `label` pixels to the right of them, on what they say."""
    clicks = [click(scenario.dialog, option.x + label, option.y) for option in options for _ in range(times)]
    return [wait(scenario.dialog), *clicks]


def settings_files(task: Task) -> Ways:
    scenario = FileManagerScenario
    options = asked(task, scenario)
    slips = [option for option in scenario.options if option not in options][:1]
    closed: list[Act] = [click(scenario.dialog, *scenario.close_px), gone(scenario.dialog), rest]
    by_menu: list[Act] = [click(scenario.window, 45, 10), rest, "Up", "Return"]
    return {
        "by the menu, on the labels": [*by_menu, *changed(options, scenario, label=60), *closed],
        "closed by Escape": ["alt+e", "n", *changed(options, scenario), "Escape", gone(scenario.dialog), rest],
        "turned there and back first": ["alt+e", "n", *changed(options, scenario, times=3), *closed],
        "a slip is taken back": ["alt+e", "n", *changed([*slips, *options, *slips], scenario), *closed],
    }


def settings_player(task: Task) -> Ways:
    scenario = PlayerScenario
    options = asked(task, scenario)
    slips = [option for option in scenario.options if option not in options][:1]
    saved: list[Act] = [click(scenario.dialog, *scenario.close_px), gone(scenario.dialog), rest]
    return {
        "by the menu, on the labels": [*menu("Tools", "Preferences.*"), *changed(options, scenario, label=60), *saved],
        "saved by a key": ["ctrl+p", *changed(options, scenario), "alt+s", gone(scenario.dialog), rest],
        "a slip is taken back": ["ctrl+p", *changed([*slips, *options, *slips], scenario), *saved],
    }


WAYS = {
    "settings_files": settings_files,
    "settings_files_two": settings_files,
    "settings_player": settings_player,
    "settings_player_three": settings_player,
}
