"""Pointer and keyboard input in real programs."""

from __future__ import annotations

import asyncio
import re
import signal
import unicodedata

from desktops import point_on
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deskhand.actions.ops import Click, Drag, Key, KeyDown, KeyUp, Move, Scroll, Type
from deskhand.desktop import op_budgets
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop

SMALL = DesktopSpec("plain", 320, 240)


at = point_on(SMALL)


SCRIPTS = (
    "The quick brown fox, 0123456789 ~`!@#$%^&*()_+-={}[]|\\:;\"'<>?,./",
    "ÀÉÎÕÜçßøåÿ´^`~¨¯¸ąęłżďěőſ",
    "Ελληνικά Кириллица Հայերեն ქართული",
    "עברית العربية فارسی हिन्दी বাংলা தமிழ் ไทย አማርኛ",
    "你好世界 日本語かなカナ 한국어 ㄱㄴㄷ",
    "🎉👩‍👩‍👧‍👦🇩🇪👍🏽☕️ e\u0301 a\u0328 \u05e9\u05c1 ≠√∞€™",
)
letters = st.sampled_from("".join(SCRIPTS))
anything = st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\ufeff")
texts = st.text(st.one_of(letters, anything, st.sampled_from("\n\t ")), min_size=1, max_size=60)


def test_an_editor_saves_what_is_typed():
    """Any text: every script, emoji with joiners, combining and spacing accents, private and unassigned planes."""
    desktop, number = LocalDesktop(), iter(range(10**6))

    async def open_editor():
        await desktop.reset(SMALL)
        await desktop.push("note.txt", b"old")
        await desktop.launch(["l3afpad", "note.txt"])
        await desktop.activate_window((await desktop.wait_window("l3afpad"))[0])
        for _ in range(10):
            if await typed("ready", looks=20) == "ready":
                return
        raise AssertionError("the editor never saved a word")

    async def typed(text: str, looks: int = 200) -> str:
        """Poll the file until it contains `text`: an editor may save after its window has settled."""
        await desktop.perform([Key(("ctrl", "a")), Type(text), Key(("ctrl", "s"))], action_id=str(next(number)))
        for _ in range(looks):
            if (await desktop.pull("note.txt")).decode(errors="replace") == text:
                break
            await asyncio.sleep(0.05)
        return (await desktop.pull("note.txt")).decode(errors="replace")

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @example("\n".join(SCRIPTS))
    @example("".join(chr(code) for code in range(0x20, 0x180) if unicodedata.category(chr(code)) != "Cc"))
    @given(texts)
    def check(text: str) -> None:
        assert loop.run_until_complete(typed(text)) == text

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(open_editor())
        check()
    finally:
        loop.run_until_complete(desktop.close())
        loop.close()


async def listening_terminal(desktop, modes=""):
    """A terminal that fills the screen and writes what it is sent, mouse reports included, to `heard`."""
    script = f"stty raw -echo; printf '{modes}'; exec cat > heard"
    await desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", script])
    await desktop.wait_window("xterm")
    await desktop.observe()


MOUSE = r"\033[?1003h\033[?1006h"  # report motion too, in the form ESC [ < code ; column ; row M (m: released)


async def reports(desktop) -> list[tuple[int, bool]]:
    """(code, pressed) of each mouse report that is no motion."""
    found = re.findall(rb"\x1b\[<(\d+);\d+;\d+([Mm])", await desktop.pull("heard"))
    return [(int(code), end == b"M") for code, end in found if not int(code) & 32]


async def test_five_buttons_and_four_wheel_directions_arrive(desktop):
    await listening_terminal(desktop, MOUSE)
    place = at(100, 100)
    for index, button in enumerate(("left", "middle", "right", "back", "forward")):
        await desktop.perform([Click(place, button)], action_id=f"button {index}")
    codes = [0, 1, 2, 128, 129]
    assert await reports(desktop) == [(code, pressed) for code in codes for pressed in (True, False)]
    await desktop.perform([Scroll(dy=2, point=place), Scroll(dy=-1), Scroll(dx=3), Scroll(dx=-1)], action_id="wheel")
    wheel = [code for code, pressed in (await reports(desktop))[10:] if pressed]
    assert wheel == [65, 65, 64, 67, 67, 67, 66]


async def test_a_drag_passes_through_every_point_of_its_path_with_the_button_held(desktop):
    await listening_terminal(desktop, MOUSE)
    corners = [(20, 20), (200, 20), (200, 120), (30, 120)]
    await desktop.perform([Drag(tuple(at(*corner) for corner in corners))], action_id="drag")
    heard = re.findall(rb"\x1b\[<(\d+);(\d+);(\d+)([Mm])", await desktop.pull("heard"))
    # 35: motion without a button, on the way to the first point.
    codes = [int(code) for code, *_ in heard if int(code) != 35]
    assert codes[0] == 0
    assert codes[-1] == 0
    assert set(codes[1:-1]) == {32}
    cells = [(int(column), int(row)) for code, column, row, _ in heard if int(code) == 32]
    start, end = (
        next((int(c), int(r)) for code, c, r, kind in heard if code == b"0" and kind == want) for want in (b"M", b"m")
    )
    right, bottom = max(column for column, _ in cells), max(row for _, row in cells)
    assert (right, start[1]) in cells
    assert (right, bottom) in cells
    assert end == (start[0] + 1, bottom) or end == (start[0] + 2, bottom)
    assert len(cells) > 30


async def test_chords_reach_a_program_as_control_characters(desktop):
    await listening_terminal(desktop)
    chords = [("ctrl", "a"), ("control", "shift", "_"), ("ctrl", "]"), ("Escape",), ("shift", "x"), ("f5",)]
    await desktop.perform([Key(chord) for chord in chords], action_id="chords")
    assert await desktop.pull("heard") == b"\x01\x1f\x1d\x1bX\x1b[15~"


async def test_a_dead_key_gives_the_next_letter_its_accent_and_an_accent_in_text_stands_alone(desktop):
    await desktop.push("note.txt", b"")
    await desktop.launch(["l3afpad", "note.txt"])
    await desktop.wait_window("l3afpad")
    await desktop.observe()
    pressed = [Key(("dead_acute",)), Type("e"), Key(("dead_diaeresis",)), Key(("shift", "u")), Type(" ´e ^o ~n")]
    await desktop.perform([*pressed, Key(("ctrl", "s"))], action_id="dead")
    assert (await desktop.pull("note.txt")).decode() == "éÜ ´e ^o ~n"


async def test_a_held_key_keeps_its_character_while_others_are_typed(desktop):
    """A character without a key of its own borrows one; that one is not given away while it is held."""
    await listening_terminal(desktop)
    many = "".join(chr(0x4E00 + index) for index in range(300))
    await desktop.perform([KeyDown("ж"), Type(many), KeyUp("ж"), Type("ж")], action_id="hold")
    assert (await desktop.pull("heard")).decode() == f"ж{many}ж"


async def test_a_spare_key_is_not_remapped_within_one_text(desktop):
    await listening_terminal(desktop)
    many = [chr(0x4E00 + index) for index in range(400)]
    texts = ["".join(many[:60]), many[0] + "".join(many[100:160]) + many[0], many[1] + "".join(many[200:300]) + many[1]]
    for index, text in enumerate(texts):
        await desktop.perform([Type(text)], action_id=str(index))
    assert (await desktop.pull("heard")).decode() == "".join(texts)


async def test_modifiers_of_a_click_are_held_for_the_click_alone(desktop):
    await listening_terminal(desktop, MOUSE)
    await desktop.perform(
        [Move(at(50, 50)), Click(at(60, 60), modifiers=("ctrl", "alt")), Click(at(150, 100))], action_id="click"
    )
    assert await reports(desktop) == [(24, True), (24, False), (0, True), (0, False)]


async def test_a_stopped_program_delays_an_action_at_most_by_its_budget(desktop, monkeypatch):
    """The calculator ignores a key for some time after it was pressed, so a second press waits until it was read."""
    pid = await desktop.launch(["galculator"])
    await desktop.activate_window((await desktop.wait_window("galculator"))[0])
    await desktop.observe()
    processes.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(op_budgets, "DRAIN_TIMEOUT_S", 2.0)
    ops = [Type("1" * 24), *[Click(at(5, 5), modifiers=("ctrl",))] * 2]
    frame = await desktop.perform(ops, action_id="stopped")  # an error past the budget
    assert frame.size == (320, 240)
