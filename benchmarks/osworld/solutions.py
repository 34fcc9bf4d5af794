"""Scripted solutions of OSWorld tasks by task id, acting by clicks, keys and text only.

`REASONS` explains why the other tasks have no solution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.osworld.scripted_actor import Hands

Solution = Callable[[Hands], Awaitable[None]]
"""Acts until the task is done."""

SOLUTIONS: dict[str, Solution] = {}
REASONS: dict[str, str] = {}


def solves(task_id: str) -> Callable[[Solution], Solution]:
    """Register a function as the solution of a task id."""

    def kept(solution: Solution) -> Solution:
        SOLUTIONS[task_id] = solution
        return solution

    return kept


async def visit(hands: Hands, address: str) -> None:
    """Open a URL in the browser tab."""
    await hands.key("ctrl+l")
    await hands.type(f"{address}\n")
    await asyncio.sleep(1.5)


@solves("bb5e4c0d-f964-439c-97b6-bdb9747de3f4")
async def make_bing_the_search_engine(hands: Hands) -> None:
    await visit(hands, "chrome://settings/searchEngines")
    await hands.press("push-button", "More actions for Microsoft Bing")
    await hands.press("menu-item|push-button", "Make default")
    await hands.see(".*", r"Microsoft Bing \(Default\)")


@solves("2ad9387a-65d8-4e33-ad5b-7580065a27ca")
async def add_a_folder_to_the_bookmarks_bar(hands: Hands) -> None:
    await visit(hands, "chrome://bookmarks")
    await hands.press("push-button", "Organize")
    await hands.press("menu-item", "Add new folder")
    await hands.see("entry", "Name")
    await hands.key("ctrl+a")
    await hands.type("Favorites\n")
    await hands.see(".*", "Favorites")


@solves("2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3")
async def rename_the_profile(hands: Hands) -> None:
    await visit(hands, "chrome://settings/manageProfile")
    await hands.press("entry", "Name", count=3)
    await hands.key("ctrl+a")
    await hands.type("Thomas")
    await hands.key("tab")
    await asyncio.sleep(1)


@solves("93eabf48-6a27-4cb6-b963-7d5fe1e0d3a9")
async def choose_the_light_mode(hands: Hands) -> None:
    await visit(hands, "chrome://settings/appearance")
    await hands.press("combo-box", "Mode")
    await hands.type("l")
    await hands.key("enter")
    await hands.see("menu-item", ".*Light.*")


@solves("99146c54-4f37-4ab8-9327-5f3291665e1e")
async def delete_data_when_windows_close(hands: Hands) -> None:
    await visit(hands, "chrome://settings/content/siteData")
    await hands.press("radio-button", "Delete data sites have saved .*")
    await asyncio.sleep(1)


@solves("af630914-714e-4a24-a7bb-f9af687d3b91")
async def take_the_largest_font(hands: Hands) -> None:
    await visit(hands, "chrome://settings/fonts")
    await hands.press("slider", "Font size")
    await hands.key("end")
    await asyncio.sleep(1)


async def save_vlc_preferences(hands: Hands) -> None:
    await hands.press("push-button", "Save")
    await asyncio.sleep(1)


VLC_PANE, VLC_ROWS = (908, 500), (270, 800)
"""Where the wheel scrolls a page of all settings, and the rows of it that show."""


async def all_vlc_preferences(hands: Hands, search: str, page: str) -> None:
    """Open the page of all settings, filtered by name."""
    await hands.key("ctrl+p")
    await hands.press("radio-button", "All")
    below = await hands.see("check-box", "Only show current")
    await hands.click(below.x + 100, below.y - 18)
    await hands.type(search)
    await asyncio.sleep(1)
    await hands.press("table-cell", page)


@solves("215dfd39-f493-4bc3-a027-8a97d72c61bf")
async def show_no_cone(hands: Hands) -> None:
    await all_vlc_preferences(hands, "cone", "Qt")
    box = await hands.reveal("check-box", "Display background cone or art", VLC_PANE, VLC_ROWS)
    await hands.click(box.x + 8, box.center[1])  # the box itself: its field is wider than its text
    await save_vlc_preferences(hands)


@solves("9195653c-f4aa-453d-aa95-787f6ccfaae9")
async def double_the_largest_volume(hands: Hands) -> None:
    await all_vlc_preferences(hands, "maximum volume", "Qt")
    field = await hands.reveal("spin-button", "Maximum Volume displayed", VLC_PANE, VLC_ROWS)
    await hands.click(*field.center)
    await hands.key("ctrl+a")
    await hands.type("200\t")
    await save_vlc_preferences(hands)


@solves("a5bbbcd5-b398-4c91-83d4-55e1e31bbb81")
async def start_vlc_in_minimal_view(hands: Hands) -> None:
    await hands.key("ctrl+p")
    await hands.press("check-box", "Start in minimal view mode")
    await save_vlc_preferences(hands)


@solves("f3977615-2b45-4ac5-8bba-80c17dbe2a37")
async def let_files_open_in_a_vlc_of_their_own(hands: Hands) -> None:
    await hands.key("ctrl+p")
    await hands.press("check-box", "Use only one instance when started from file manager")
    await save_vlc_preferences(hands)


@solves("8ba5ae7a-5ae5-4eab-9fcc-5dd4fe3abf89")
async def record_to_the_desktop(hands: Hands) -> None:
    await hands.key("ctrl+p")
    await hands.press("check-box", "Input / Codecs")
    await hands.press("text", "Record directory or filename.*")
    await hands.key("ctrl+a")
    await hands.type("/home/user/Desktop")
    await save_vlc_preferences(hands)


@solves("ef9d12bd-bcee-4ba0-a40e-918400f43ddf")
async def show_the_slide_pane(hands: Hands) -> None:
    await hands.press("menu", "View")
    await hands.press("check-menu-item", "Slide Pane")
    await hands.see("document-frame", "Slides View")


async def gimp_preferences(hands: Hands) -> tuple[int, int]:
    """Open GIMP's preferences and return the top left corner of the dialog; GIMP has no accessibility tree."""
    await asyncio.sleep(1)
    await hands.click(49, 29)  # Edit
    await asyncio.sleep(0.7)
    await hands.click(98, 564)  # Preferences
    (dialog,) = await hands.desktop.wait_window("Preferences", timeout_s=20)
    await asyncio.sleep(1)
    return dialog.x, dialog.y


@solves("7b7617bd-57cc-468e-9c91-40c4ec2bcb3d")
async def keep_a_hundred_steps_to_undo(hands: Hands) -> None:
    x, y = await gimp_preferences(hands)
    await hands.click(x + 509, y + 114, count=2)
    await hands.key("ctrl+a")
    await hands.type("100\t")
    await hands.click(x + 704, y + 424)  # OK
    await asyncio.sleep(1)


@solves("7767eef2-56a3-4cea-8c9f-48c070c7d65b")
async def take_the_light_theme(hands: Hands) -> None:
    x, y = await gimp_preferences(hands)
    await hands.click(x + 93, y + 217)  # Theme
    await asyncio.sleep(1)
    await hands.click(x + 281, y + 186)  # Light
    await asyncio.sleep(1.5)
    await hands.click(x + 704, y + 424)  # OK
    await asyncio.sleep(1)


async def terminal(hands: Hands, line: str) -> None:
    """Run a line in the shell of a new terminal."""
    await hands.key("ctrl+alt+t")
    await hands.window("terminal")
    await hands.see("terminal", ".*")
    await hands.type(f"{line}\n")
    await asyncio.sleep(1)


@solves("a4d98375-215b-4a4d-aee9-3d4370fccc41")
async def lock_the_screen_when_away(hands: Hands) -> None:
    await terminal(hands, "gsettings set org.gnome.desktop.screensaver lock-enabled true")


@solves("bedcedc4-4d72-425e-ad62-21960b11fe0d")
async def never_blank_the_screen(hands: Hands) -> None:
    await terminal(hands, "gsettings set org.gnome.desktop.session idle-delay 0")


@solves("f9be0997-4b7c-45c5-b05c-4612b44a6118")
async def show_no_banners(hands: Hands) -> None:
    await terminal(hands, "gsettings set org.gnome.desktop.notifications show-banners false")


@solves("13584542-872b-42d8-b299-866967b5c3ef")
async def keep_the_size_of_terminals(hands: Hands) -> None:
    await hands.key("ctrl+alt+t")
    await hands.window("terminal")
    await hands.press("menu", "Edit")
    await hands.press("menu-item", "Preferences.*")
    await hands.press("page-tab", "Appearance")
    for nth, value in ((2, 132), (3, 43)):  # columns and rows of new windows
        await hands.press("spin-button", "", nth, count=3)
        await hands.key("ctrl+a")
        await hands.type(f"{value}\t")
    await hands.press("push-button", "Close")
    await asyncio.sleep(1)
    await hands.key("alt+F4")
    await asyncio.sleep(1)


@solves("2cd43775-7085-45d8-89fa-9e35c0a915cf")
async def save_every_three_minutes(hands: Hands) -> None:
    await hands.press("menu", "Tools")
    await hands.press("menu-item", "Options.*")
    await hands.press("table-cell", "Load/Save", count=2)
    await hands.press("table-cell", "General", 1)
    box = await hands.see("check-box", "Save AutoRecovery information every.*")
    if "checked" not in box.states:
        await hands.click(box.x + 9, box.center[1])
    await hands.press("spin-button", ".*", count=3)
    await hands.key("ctrl+a")
    await hands.type("3\t")
    await hands.press("push-button", "OK")
    await asyncio.sleep(2)


REASONS["937087b6-f668-4ba6-9110-60682ee33441"] = (
    "VLC is the only video player of the desktop: it is the default from the start"
)
REASONS["ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3"] = "there is no GNOME Shell, whose favourites are asked for"
REASONS["5ac2891a-eacd-4954-b339-98abba077adb"] = "desktop-env 1.0.2 has no metric check_play_and_exit"
REASONS["e0df059f-28a6-4169-924f-b9623e7184cc"] = "its set-up makes the folder with sudo, and guests are never root"
