"""What a person does at a desktop, as acts: the vocabulary of the tables of ways in this folder.

A way is a list of acts. A text is keys, each pressed when the screen is still ("alt+f s"); the functions below make the
other acts. `play_way` sets a task up, does a way, and judges.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable

from benchmarks.osworld.scripted_actor import ScriptedActor
from deskhand.actions.ops import Button, Click, KeyDown, KeyUp, MouseDown, MouseUp, Move, Point, Scroll, Type
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.tasks.judge import ending, judge
from deskhand.tasks.outcome import Outcome
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.task import Rect, Task

STILL_S = 0.15
LOOK_S = 20.0


class Person(ScriptedActor):
    """Who works on a task."""

    def __init__(self, task: Task, desktop: StageableDesktop) -> None:
        super().__init__(desktop, task.width, task.height)
        self.task = task

    async def still(self, quiet_s: float = STILL_S) -> None:
        await hd_screen.wait_still(self.desktop, quiet_s, 10.0)

    def point(self, x: float, y: float) -> Point:
        return self.at(int(x), int(y))

    async def shown(self, title: str) -> Window:
        """The newest window with this in its title or class, once it is shown."""
        return (await self.desktop.wait_window(title, timeout_s=15.0))[-1]


Act = str | Callable[[Person], Awaitable[None]]
Ways = dict[str, list[Act]]
"""Ways by what they are."""
Boxes = Callable[[StageableDesktop], Awaitable[dict[str, Rect]]]


def types(text: str) -> Act:
    """Type a text."""

    async def act(person: Person) -> None:
        await person.do(Type(text))
        await person.still()

    return act


def click(window: str, x: float, y: float, *, count: int = 1, button: Button = "left") -> Act:
    """Click at a place of a window: pixels (negative: from the right or lower edge), or shares below 1."""

    async def act(person: Person) -> None:
        place = person.point(*await _place(person, window, x, y))
        await person.do(Click(place, button, count))
        await person.still()

    return act


async def _place(person: Person, title: str, x: float, y: float) -> tuple[float, float]:
    window = await person.shown(title)

    def along(value: float, start: int, length: int) -> float:
        if isinstance(value, float) and 0 < value < 1:
            return start + length * value
        return start + value if value >= 0 else start + length + value

    return along(x, window.x, window.width), along(y, window.y, window.height)


def hit(boxes: Boxes, name: str, *, count: int = 1, button: Button = "left") -> Act:
    """Click in the middle of one of the boxes of a scenario."""

    async def act(person: Person) -> None:
        box = (await boxes(person.desktop))[name]
        await person.do(Click(person.point(*box.center), button, count))
        await person.still()

    return act


def remembered(boxes: Boxes) -> Boxes:
    """The boxes as they were when they were first asked for; later the screen may show other things."""
    found: dict[str, Rect] = {}

    async def look(desktop: StageableDesktop) -> dict[str, Rect]:
        if not found:
            found.update(await boxes(desktop))
        return found

    return look


def drop(boxes: Boxes, name: str, onto: str, *modifiers: str) -> Act:
    """Drag one box of a scenario onto another, with keys held, as a hand does: in small moves, resting at the end."""

    async def act(person: Person) -> None:
        found = await boxes(person.desktop)
        (x, y), (to_x, to_y) = found[name].center, found[onto].center
        await person.do(MouseDown(person.point(x, y)))
        await person.do(Move(person.point(x - 6, y + 2)))
        for part in range(1, 9):
            await person.do(Move(person.point(x + (to_x - x) * part / 8, y + (to_y - y) * part / 8)))
        await person.do(*map(KeyDown, modifiers), Move(person.point(to_x + 1, to_y)))
        await person.still(0.3)
        await person.do(MouseUp())
        if modifiers:
            await person.do(*map(KeyUp, modifiers))
        await person.still(0.5)

    return act


def scroll(notches: int) -> Act:
    """Turn the wheel in the middle of the screen."""

    async def act(person: Person) -> None:
        await person.do(Scroll(0, notches, person.point(person.task.width / 2, person.task.height / 2)))
        await person.still()

    return act


def wait(title: str) -> Act:
    """Wait until a window is shown and the screen is still."""

    async def act(person: Person) -> None:
        await person.shown(title)
        await person.still(0.3)

    return act


def gone(title: str) -> Act:
    """Wait until no window has this in its title."""

    async def act(person: Person) -> None:
        await hd_screen.wait_closed(person.desktop, title)
        await person.still()

    return act


def label(role: str, name: str, nth: int = 0, *, count: int = 1, button: Button = "left") -> Act:
    """Click on what has a role and a name in the accessibility tree; both are patterns."""

    async def act(person: Person) -> None:
        node = await person.see(role, name, nth, LOOK_S)
        await person.do(Click(person.at(*node.center), button, count))
        await person.still(0.3)

    return act


def menu(*names: str) -> list[Act]:
    """Open a menu by the mouse and go on to an item of it."""
    return [label(".*menu.*", name) for name in names]


async def rest(person: Person) -> None:
    """Wait until the screen has been still for a while."""
    await person.still(0.8)


def told(task: Task, pattern: str) -> tuple[str, ...]:
    """The groups of a pattern in the instruction: a person knows no more than that and the screen."""
    found = re.search(pattern, task.instruction)
    assert found is not None, (pattern, task.instruction)
    return found.groups()


async def play_way(task: Task, desktop: StageableDesktop, way: list[Act]) -> tuple[Outcome, int]:
    """Set a task up, do a way, and judge. Return the outcome and the number of acts."""
    await task.setup(desktop)
    person = Person(task, desktop)
    await person.still()  # who has not looked at the screen clicks on a window that is still being laid out
    for act in way:
        if isinstance(act, str):
            for chord in act.split():
                await person.key(chord)
                await person.still()
        else:
            await act(person)
    outcome = await judge(task, desktop, acted_at=time.monotonic(), **ending(person.ops))
    return outcome, len(person.ops)
