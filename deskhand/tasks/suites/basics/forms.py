"""A form to fill in. Invariant: only what the form program wrote when it was sent off is judged, every field of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import clause, judged
from deskhand.tasks.suites.basics.layout import file_text, scatter
from deskhand.tasks.suites.basics.screen_search import (
    HEIGHT,
    THEMES,
    WIDTH,
    click_in,
    find_entries,
    wait_until,
    wait_until_visible,
)
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, FileContents, Milestone, Rect, Task

FIELDS = {
    "Name": ("Anna", "Bruno", "Clara", "David", "Elena", "Felix"),
    "City": ("Rome", "Oslo", "Lima", "Cairo", "Quito", "Delhi"),
    "Street": ("Mill Lane", "High Road", "Park Row", "Lake Street"),
    "Phone": ("4512", "7730", "2098", "6641", "8125"),
    "Team": ("north", "south", "east", "west"),
    "Drink": ("tea", "coffee", "milk", "water"),
    "Day": ("Monday", "Tuesday", "Friday", "Sunday"),
}
TITLES = ("New guest", "Order", "Sign up", "Visitor")
OK_FROM_RIGHT_PX, OK_FROM_BOTTOM_PX = 50, 24
"""Middle of the OK button, from the window's lower right corner."""


class FormScenario:
    """Which fields the form has and what goes into them; a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"form_fill:{seed}")
        self.fields = rng.sample(sorted(FIELDS), 3)
        asked = rng.sample(self.fields, rng.choice([2, 2, 3]))
        self.values = {field: rng.choice(FIELDS[field]) for field in asked}
        self.title = rng.choice(TITLES)
        self.width = rng.randrange(240, 321, 16)
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        words = ["--forms", f"--title={self.title}", "--text=Please fill in", "--separator=|", f"--width={self.width}"]
        words += [f"--add-entry={field}" for field in self.fields]
        await desktop.launch(["sh", "-c", 'zenity "$@" > answers.txt; echo $? > status.txt', "sh", *words])
        await self.shuffle_windows(desktop, self.place_seed)
        await self.entries(desktop)

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (window,) = await desktop.wait_window("zenity")
        ((x, y),) = scatter(random.Random(seed), [(window.width, window.height)], WIDTH, HEIGHT)
        await desktop.place_window(window, x, y)

    async def entries(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Where each field is typed, in the start state."""
        boxes = await wait_until_visible(
            desktop, "zenity", lambda rgb, box: find_entries(rgb, box, len(self.fields)), "its fields"
        )
        return dict(zip(self.fields, boxes, strict=True))

    async def sent(self, desktop: StageableDesktop) -> dict[str, str] | None:
        """What was sent off by OK, by field; None when nothing was."""
        if (await file_text(desktop, "status.txt") or "").strip() != "0":
            return None
        answers = (await file_text(desktop, "answers.txt") or "").rstrip("\n").split("|")
        return dict(zip(self.fields, answers, strict=False))

    def right(self, sent: dict[str, str] | None) -> float:
        """Share of the fields that hold what they should."""
        return sum((sent or {}).get(field) == self.values.get(field, "") for field in self.fields) / len(self.fields)


def fill_form(seed: int) -> Task:
    """Type some values into their fields, leave the others empty, press OK."""
    scenario = FormScenario(seed)
    wishes = ", ".join(f"{field} {value}" for field, value in scenario.values.items())

    async def check(desktop: StageableDesktop) -> CheckResult:
        sent = await scenario.sent(desktop)
        fields = [
            clause(f"the field {field}", (sent or {}).get(field), scenario.values.get(field, ""))
            for field in scenario.fields
        ]
        return judged(clause("the form was sent off", sent is not None, True), *fields)

    def end_states() -> ExampleEndStates:
        words = [scenario.values.get(field, "") for field in scenario.fields]
        first = scenario.fields.index(next(iter(scenario.values)))

        def sent(words: list[str], status: str = "0") -> FileContents:
            return {"answers.txt": f"{'|'.join(words)}\n".encode(), "status.txt": f"{status}\n".encode()}

        near = {
            "cancelled": sent(words, "1"),
            "one field is empty": sent([word if place != first else "" for place, word in enumerate(words)]),
            "one letter too many": sent([word if place != first else f"{word}s" for place, word in enumerate(words)]),
            "in the wrong fields": sent([*words[1:], words[0]]),
        }
        return ExampleEndStates(near, sent(words))

    async def sent_off(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(await scenario.sent(desktop) is not None), "the form was sent off")

    async def filled(desktop: StageableDesktop) -> CheckResult:
        sent = await scenario.sent(desktop) or {}
        asked = [sent.get(field) == value for field, value in scenario.values.items()]
        return CheckResult(sum(asked) / len(asked), "share of the asked values that were sent")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        places = await scenario.entries(desktop)
        for field, value in scenario.values.items():
            yield [click_in(places[field])]
            yield [Type(value)]
        (window,) = await desktop.wait_window("zenity")
        x, y = window.x + window.width - OK_FROM_RIGHT_PX, window.y + window.height - OK_FROM_BOTTOM_PX
        yield [Click(Point(x, y, screen_px(WIDTH, HEIGHT)))]

        async def sent() -> bool:
            return await scenario.sent(desktop) is not None

        await wait_until(sent)
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        places = await scenario.entries(desktop)
        first = next(iter(scenario.values))
        return places[first], [box for field, box in places.items() if field != first]

    return Task(
        id=f"basics/form_fill/{seed}",
        family="form_fill",
        suite="basics",
        seed=seed,
        instruction=f"Fill in the form and press OK: {wishes}. Leave the rest empty",
        width=WIDTH,
        height=HEIGHT,
        max_steps=2 * len(scenario.values) + 4,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=scenario.theme,
        milestones=(Milestone("the form was sent off", 0.1, sent_off), Milestone("asked values arrived", 0.3, filled)),
        difficulty="medium",
        shuffle_windows=scenario.shuffle_windows,
        example_end_states=end_states,
        metadata={"fields": scenario.fields, "values": scenario.values},
    )


FAMILIES = (
    Family("form_fill", ("zenity",), "medium", fill_form, "type values into the right fields of a form and send it"),
)
