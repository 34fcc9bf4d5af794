"""Scripted solutions of OSWorld tasks by task id, acting by clicks, keys and text only.

`REASONS` explains why the other tasks have no solution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.osworld.scripted_actor import ScriptedActor

Solution = Callable[[ScriptedActor], Awaitable[None]]
"""Acts until the task is done."""

SOLUTIONS: dict[str, Solution] = {}
REASONS: dict[str, str] = {}


def solves(task_id: str) -> Callable[[Solution], Solution]:
    """Register a function as the solution of a task id."""

    def kept(solution: Solution) -> Solution:
        SOLUTIONS[task_id] = solution
        return solution

    return kept


async def visit(actor: ScriptedActor, address: str) -> None:
    """Open a URL in the browser tab."""
    await actor.key("ctrl+l")
    await actor.type(f"{address}\n")
    await asyncio.sleep(1.5)


@solves("bb5e4c0d-f964-439c-97b6-bdb9747de3f4")
async def make_bing_the_search_engine(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://settings/searchEngines")
    await actor.press("push-button", "More actions for Microsoft Bing")
    await actor.press("menu-item|push-button", "Make default")
    await actor.see(".*", r"Microsoft Bing \(Default\)")


@solves("2ad9387a-65d8-4e33-ad5b-7580065a27ca")
async def add_a_folder_to_the_bookmarks_bar(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://bookmarks")
    await actor.press("push-button", "Organize")
    await actor.press("menu-item", "Add new folder")
    await actor.see("entry", "Name")
    await actor.key("ctrl+a")
    await actor.type("Favorites\n")
    await actor.see(".*", "Favorites")


@solves("2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3")
async def rename_the_profile(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://settings/manageProfile")
    await actor.press("entry", "Name", count=3)
    await actor.key("ctrl+a")
    await actor.type("Thomas")
    await actor.key("tab")
    await asyncio.sleep(1)


@solves("93eabf48-6a27-4cb6-b963-7d5fe1e0d3a9")
async def choose_the_light_mode(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://settings/appearance")
    await actor.press("combo-box", "Mode")
    await actor.type("l")
    await actor.key("enter")
    await actor.see("menu-item", ".*Light.*")


@solves("99146c54-4f37-4ab8-9327-5f3291665e1e")
async def delete_data_when_windows_close(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://settings/content/siteData")
    await actor.press("radio-button", "Delete data sites have saved .*")
    await asyncio.sleep(1)


@solves("af630914-714e-4a24-a7bb-f9af687d3b91")
async def take_the_largest_font(actor: ScriptedActor) -> None:
    await visit(actor, "chrome://settings/fonts")
    await actor.press("slider", "Font size")
    await actor.key("end")
    await asyncio.sleep(1)


async def save_vlc_preferences(actor: ScriptedActor) -> None:
    await actor.press("push-button", "Save")
    await asyncio.sleep(1)


VLC_PANE, VLC_ROWS = (908, 500), (270, 800)
"""Where the wheel scrolls a page of all settings, and the rows of it that show."""


async def all_vlc_preferences(actor: ScriptedActor, search: str, page: str) -> None:
    """Open the page of all settings, filtered by name."""
    await actor.key("ctrl+p")
    await actor.press("radio-button", "All")
    below = await actor.see("check-box", "Only show current")
    await actor.click(below.x + 100, below.y - 18)
    await actor.type(search)
    await asyncio.sleep(1)
    await actor.press("table-cell", page)


@solves("215dfd39-f493-4bc3-a027-8a97d72c61bf")
async def show_no_cone(actor: ScriptedActor) -> None:
    await all_vlc_preferences(actor, "cone", "Qt")
    box = await actor.reveal("check-box", "Display background cone or art", VLC_PANE, VLC_ROWS)
    await actor.click(box.x + 8, box.center[1])  # the box itself: its field is wider than its text
    await save_vlc_preferences(actor)


@solves("9195653c-f4aa-453d-aa95-787f6ccfaae9")
async def double_the_largest_volume(actor: ScriptedActor) -> None:
    await all_vlc_preferences(actor, "maximum volume", "Qt")
    field = await actor.reveal("spin-button", "Maximum Volume displayed", VLC_PANE, VLC_ROWS)
    await actor.click(*field.center)
    await actor.key("ctrl+a")
    await actor.type("200\t")
    await save_vlc_preferences(actor)


@solves("a5bbbcd5-b398-4c91-83d4-55e1e31bbb81")
async def start_vlc_in_minimal_view(actor: ScriptedActor) -> None:
    await actor.key("ctrl+p")
    await actor.press("check-box", "Start in minimal view mode")
    await save_vlc_preferences(actor)


@solves("f3977615-2b45-4ac5-8bba-80c17dbe2a37")
async def let_files_open_in_a_vlc_of_their_own(actor: ScriptedActor) -> None:
    await actor.key("ctrl+p")
    await actor.press("check-box", "Use only one instance when started from file manager")
    await save_vlc_preferences(actor)


@solves("8ba5ae7a-5ae5-4eab-9fcc-5dd4fe3abf89")
async def record_to_the_desktop(actor: ScriptedActor) -> None:
    await actor.key("ctrl+p")
    await actor.press("check-box", "Input / Codecs")
    await actor.press("text", "Record directory or filename.*")
    await actor.key("ctrl+a")
    await actor.type("/home/user/Desktop")
    await save_vlc_preferences(actor)


@solves("ef9d12bd-bcee-4ba0-a40e-918400f43ddf")
async def show_the_slide_pane(actor: ScriptedActor) -> None:
    await actor.press("menu", "View")
    await actor.press("check-menu-item", "Slide Pane")
    await actor.see("document-frame", "Slides View")


async def gimp_preferences(actor: ScriptedActor) -> tuple[int, int]:
    """Open GIMP's preferences and return the top left corner of the dialog; GIMP has no accessibility tree."""
    await asyncio.sleep(1)
    await actor.click(49, 29)  # Edit
    await asyncio.sleep(0.7)
    await actor.click(98, 564)  # Preferences
    (dialog,) = await actor.desktop.wait_window("Preferences", timeout_s=20)
    await asyncio.sleep(1)
    return dialog.x, dialog.y


@solves("7b7617bd-57cc-468e-9c91-40c4ec2bcb3d")
async def keep_a_hundred_steps_to_undo(actor: ScriptedActor) -> None:
    x, y = await gimp_preferences(actor)
    await actor.click(x + 509, y + 114, count=2)
    await actor.key("ctrl+a")
    await actor.type("100\t")
    await actor.click(x + 704, y + 424)  # OK
    await asyncio.sleep(1)


@solves("7767eef2-56a3-4cea-8c9f-48c070c7d65b")
async def take_the_light_theme(actor: ScriptedActor) -> None:
    x, y = await gimp_preferences(actor)
    await actor.click(x + 93, y + 217)  # Theme
    await asyncio.sleep(1)
    await actor.click(x + 281, y + 186)  # Light
    await asyncio.sleep(1.5)
    await actor.click(x + 704, y + 424)  # OK
    await asyncio.sleep(1)


async def terminal(actor: ScriptedActor, line: str) -> None:
    """Run a line in the shell of a new terminal."""
    await actor.key("ctrl+alt+t")
    await actor.window("terminal")
    await actor.see("terminal", ".*")
    await actor.type(f"{line}\n")
    await asyncio.sleep(1)


@solves("a4d98375-215b-4a4d-aee9-3d4370fccc41")
async def lock_the_screen_when_away(actor: ScriptedActor) -> None:
    await terminal(actor, "gsettings set org.gnome.desktop.screensaver lock-enabled true")


@solves("bedcedc4-4d72-425e-ad62-21960b11fe0d")
async def never_blank_the_screen(actor: ScriptedActor) -> None:
    await terminal(actor, "gsettings set org.gnome.desktop.session idle-delay 0")


@solves("f9be0997-4b7c-45c5-b05c-4612b44a6118")
async def show_no_banners(actor: ScriptedActor) -> None:
    await terminal(actor, "gsettings set org.gnome.desktop.notifications show-banners false")


@solves("ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3")
async def drop_vim_from_the_favorites(actor: ScriptedActor) -> None:
    favorites = "['thunderbird.desktop', 'google-chrome.desktop']"
    await terminal(actor, f'gsettings set org.gnome.shell favorite-apps "{favorites}"')


@solves("13584542-872b-42d8-b299-866967b5c3ef")
async def keep_the_size_of_terminals(actor: ScriptedActor) -> None:
    await actor.key("ctrl+alt+t")
    await actor.window("terminal")
    await actor.press("menu", "Edit")
    await actor.press("menu-item", "Preferences.*")
    await actor.press("page-tab", "Appearance")
    for nth, value in ((2, 132), (3, 43)):  # columns and rows of new windows
        await actor.press("spin-button", "", nth, count=3)
        await actor.key("ctrl+a")
        await actor.type(f"{value}\t")
    await actor.press("push-button", "Close")
    await asyncio.sleep(1)
    await actor.key("alt+F4")
    await asyncio.sleep(1)


@solves("2cd43775-7085-45d8-89fa-9e35c0a915cf")
async def save_every_three_minutes(actor: ScriptedActor) -> None:
    await actor.press("menu", "Tools")
    await actor.press("menu-item", "Options.*")
    await actor.press("table-cell", "Load/Save", count=2)
    await actor.press("table-cell", "General", 1)
    box = await actor.see("check-box", "Save AutoRecovery information every.*")
    if "checked" not in box.states:
        await actor.click(box.x + 9, box.center[1])
    await actor.press("spin-button", ".*", count=3)
    await actor.key("ctrl+a")
    await actor.type("3\t")
    await actor.press("push-button", "OK")
    await asyncio.sleep(2)


REASONS["937087b6-f668-4ba6-9110-60682ee33441"] = (
    "VLC is the only video player of the desktop: it is the default from the start"
)
REASONS["5ac2891a-eacd-4954-b339-98abba077adb"] = "desktop-env 1.0.2 has no metric check_play_and_exit"
REASONS["e0df059f-28a6-4169-924f-b9623e7184cc"] = "its set-up makes the folder with sudo, and guests are never root"
