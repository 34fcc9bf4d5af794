"""Families `settings_*`: preferences of the file manager and of the media player. The saved settings are judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, click_at, press
from deskhand.tasks.suites.basics.scenario import THEMES, clause, milestone, scenario_family
from deskhand.tasks.task import ExampleEndStates, Task

Values = Mapping[str, str]


@dataclass(frozen=True)
class Option:
    """A check box: its label, its key in the file, and its place in the dialog, in pixels."""

    label: str
    key: str
    x: int
    y: int
    default: str = "0"
    """Its value if the file does not name it."""


class PreferencesScenario(HdScenario):
    """A program whose preferences are to be changed. A subclass names its file, options, window and dialog."""

    path: str
    options: tuple[Option, ...]
    others: ClassVar[Values]
    """Other settings that must stay as they are."""
    writes_defaults: bool
    """Whether the program also saves settings that were not changed."""
    program: str
    window: str
    dialog: str
    argv: tuple[str, ...]
    open_by: tuple[str, ...]
    """Chords that open the dialog."""
    close_px: tuple[int, int]
    """The button that closes it and keeps what was changed."""

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.theme = self.rng.choice(THEMES)
        self.start: Values = {option.key: self.rng.choice("01") for option in self.options}

    def content(self, values: Mapping[str, str]) -> bytes:
        """Return a file with these values."""
        raise NotImplementedError

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.path, self.content(self.start))
        await desktop.launch([*self.argv])
        await desktop.wait_window(self.window, timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_still(desktop, 1.0)

    async def read(self, desktop: StageableDesktop) -> tuple[Values, Values]:
        """Return the values of the options in the file, and other values that are not as they were."""
        text = (await read_file(desktop, self.path) or b"").decode("utf-8", errors="replace")
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        values = {option.key: found.pop(option.key, option.default) for option in self.options}
        expected = found if self.writes_defaults else {}
        return values, {key: value for key, value in found.items() if {**expected, **self.others}.get(key) != value}

    def change(self, count: int) -> Task:
        """Return the task to change `count` options and no other."""
        options = self.rng.sample(self.options, count)
        wanted = {**self.start, **{option.key: "01"[self.start[option.key] == "0"] for option in options}}
        wishes = [f'{"on" if wanted[option.key] == "1" else "off"} "{option.label}"' for option in options]

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            values, changed = await self.read(desktop)
            return [clause("the options", values, wanted), clause("other settings that were changed", changed, {})]

        async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            for chord in self.open_by:
                yield press(chord)
                await hd_screen.wait_still(desktop, 0.4)
            window = await hd_screen.wait_shown(desktop, self.dialog)
            for option in options:
                yield [click_at(window.x + option.x, window.y + option.y)]
                await hd_screen.wait_still(desktop, 0.3)
            yield [click_at(window.x + self.close_px[0], window.y + self.close_px[1])]
            await hd_screen.wait_closed(desktop, self.dialog)

        async def share_changed(desktop: StageableDesktop) -> float:
            values, changed = await self.read(desktop)
            right = sum(values[option.key] == wanted[option.key] for option in options)
            return 0.0 if changed else right / count

        def end_states() -> ExampleEndStates:
            other = next(option for option in self.options if option not in options)
            flipped = {**wanted, other.key: "01"[wanted[other.key] == "0"]}
            half = {**self.start, **{option.key: wanted[option.key] for option in options[1:]}}
            return ExampleEndStates(
                {
                    "another one too": {self.path: self.content(flipped)},
                    "another one": {self.path: self.content({**self.start, other.key: flipped[other.key]})},
                    "one is not changed": {self.path: self.content(half)},
                },
                {self.path: self.content(wanted)},
            )

        return self.build_task(
            f"In the preferences of the {self.program} turn {' and turn '.join(wishes)}, and change nothing else",
            clauses=clauses,
            oracle=hd_screen.until_written(self.path, steps),
            example_end_states=end_states,
            max_steps=8 + 2 * count,
            milestones=(milestone("options are changed", 0.3, share_changed),) if count > 2 else (),
        )


class FileManagerScenario(PreferencesScenario):
    """PCManFM, which saves each change at once."""

    applications = ("pcmanfm",)
    path = ".config/libfm/libfm.conf"
    options = (
        Option("Open files with single click", "single_click", 178, 50),
        Option("Confirm before deleting files", "confirm_del", 178, 118),
        Option("Erase files on removable media", "no_usb_trash", 202, 172),
        Option("Confirm before moving files", "confirm_trash", 202, 199),
        Option("Don't ask options on launch executable file", "quick_exec", 178, 225),
    )
    others: ClassVar[Values] = {
        "use_trash": "1", "drop_default_action": "auto", "smart_desktop_autodrop": "1", "si_unit": "0",
        "backup_as_hidden": "1", "show_full_names": "0", "auto_selection_delay": "600", "advanced_mode": "0",
    }  # fmt: skip
    writes_defaults = True
    program, window, dialog = "file manager", "Documents", "Preferences"
    argv = ("pcmanfm", "Documents")
    open_by, close_px = ("alt+e", "n"), (577, 487)

    def content(self, values: Mapping[str, str]) -> bytes:
        lines = [f"{key}={value}" for key, value in {**self.others, **values}.items()]
        return "\n".join(["[config]", *lines, ""]).encode()


class PlayerScenario(PreferencesScenario):
    """VLC, whose file names what differs from its defaults. It does not ask about the network at the start."""

    applications = ("vlc-bin", "vlc-plugin-base", "vlc-plugin-qt")
    path = ".config/vlc/vlcrc"
    options = (
        Option("Show systray icon", "qt-system-tray", 178, 299, default="1"),
        Option("Pause playback when minimized", "qt-pause-minimized", 453, 272),
        Option("Use a dark palette", "qt-dark-palette", 453, 299),
        Option("Allow only one instance", "one-instance", 40, 455),
        Option("Display playlist tree", "playlist-tree", 40, 509),
        Option("Pause on the last frame of a video", "play-and-pause", 403, 509),
    )
    others: ClassVar[Values] = {"qt-privacy-ask": "0", "qt-updates-notif": "0", "metadata-network-access": "0"}
    writes_defaults = False
    program, window, dialog = "media player", "VLC media player", "Simple Preferences"
    argv = ("vlc",)
    open_by, close_px = ("ctrl+p",), (664, 680)

    def content(self, values: Mapping[str, str]) -> bytes:
        lines = {key: f"{key}={value}\n" for key, value in {**self.others, **values}.items()}
        qt = "".join(line for key, line in lines.items() if key.startswith("qt-"))
        core = "".join(line for key, line in lines.items() if not key.startswith("qt-"))
        return f"[qt]\n{qt}[core]\n{core}".encode()


ABILITIES = ("use menus and dialogs", "find something")


@scenario_family(
    FileManagerScenario, "settings_files", "easy", "change a preference of the file manager", abilities=ABILITIES
)
def change_file_manager(scenario: FileManagerScenario) -> Task:
    return scenario.change(1)


@scenario_family(
    FileManagerScenario,
    "settings_files_two",
    "medium",
    "change two preferences of the file manager",
    abilities=ABILITIES,
)
def change_file_manager_twice(scenario: FileManagerScenario) -> Task:
    return scenario.change(2)


@scenario_family(
    PlayerScenario, "settings_player", "medium", "change a preference of the media player", abilities=ABILITIES
)
def change_player(scenario: PlayerScenario) -> Task:
    return scenario.change(1)


@scenario_family(
    PlayerScenario, "settings_player_three", "hard", "change three preferences of the media player", abilities=ABILITIES
)
def change_player_often(scenario: PlayerScenario) -> Task:
    return scenario.change(3)
