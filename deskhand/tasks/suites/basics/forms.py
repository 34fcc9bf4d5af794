"""Family `form_fill`: a zenity form. Every field that the form program wrote is judged."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_text
from deskhand.tasks.setup_facts import exit_code, note
from deskhand.tasks.suites.basics.dialogs import PROGRAM, SCRIPT
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    SingleWindowScenario,
    clause,
    combine_clauses,
    forged_files,
    milestone,
    scenario_family,
)
from deskhand.tasks.suites.basics.screen_search import click_in, find_entries, wait_until, wait_until_visible
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents, Rect, Task

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
SEPARATOR = "\x1f"
"""Between the values that zenity prints; no key types it."""
OK_FROM_RIGHT_PX, OK_FROM_BOTTOM_PX = 50, 24
"""Center of the OK button, from the window's lower right corner."""


class FormScenario(SingleWindowScenario):
    """The fields of a form and the values for some of them."""

    applications = ("zenity",)
    window_class = "zenity"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.fields = rng.sample(sorted(FIELDS), 3)
        filled = rng.sample(self.fields, rng.choice([2, 2, 3]))
        self.values = {field: rng.choice(FIELDS[field]) for field in filled}
        self.target = filled[0]
        self.title = rng.choice(TITLES)
        self.form_width = rng.randrange(240, 321, 16)
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        options = ["--forms", f"--title={self.title}", "--text=Please fill in", f"--separator={SEPARATOR}"]
        options += [f"--width={self.form_width}", *(f"--add-entry={field}" for field in self.fields)]
        note(desktop, PROGRAM, await desktop.launch(["sh", "-c", SCRIPT, "answers.txt", *options]))
        await self.shuffle_windows(desktop, self.place_seed)
        await self.boxes(desktop)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the text fields in the start state."""
        boxes = await wait_until_visible(
            desktop, "zenity", lambda rgb, box: find_entries(rgb, box, len(self.fields)), "its fields"
        )
        return dict(zip(self.fields, boxes, strict=True))

    async def sent(self, desktop: StageableDesktop) -> dict[str, str] | None:
        """Return the values by field after OK; None if the form was not sent. With more or fewer values than fields, a
        value holds the separator, so that no field is known."""
        if (await read_text(desktop, "status.txt") or "").strip() != "0":
            return None
        answers = (await read_text(desktop, "answers.txt") or "").rstrip("\n").split(SEPARATOR)
        return dict(zip(self.fields, answers, strict=True)) if len(answers) == len(self.fields) else {}


@scenario_family(
    FormScenario,
    "form_fill",
    "medium",
    "type values into the right fields of a form and send it",
    abilities=("fill in a form",),
)
def fill_form(scenario: FormScenario) -> Task:
    wishes = ", ".join(f"{field} {value}" for field, value in scenario.values.items())

    async def check(desktop: StageableDesktop) -> CheckResult:
        sent = await scenario.sent(desktop)
        is_seen, code = await exit_code(desktop, PROGRAM)
        return combine_clauses(
            clause("the form was sent", sent is not None, True),
            *([clause("the form's exit code", code, 0)] if is_seen else []),
            *(
                clause(f"the field {field}", (sent or {}).get(field), scenario.values.get(field, ""))
                for field in scenario.fields
            ),
            untrusted_source=not is_seen,
        )

    def end_states() -> ExampleEndStates:
        values = [scenario.values.get(field, "") for field in scenario.fields]
        first = scenario.fields.index(scenario.target)

        def sent(values: list[str], status: str = "0") -> FileContents:
            return {"answers.txt": f"{SEPARATOR.join(values)}\n".encode(), "status.txt": f"{status}\n".encode()}

        def with_first(value: str) -> FileContents:
            return sent([value if index == first else each for index, each in enumerate(values)])

        negatives = {
            "cancelled": sent(values, "1"),
            "one field is empty": with_first(""),
            "one letter too many": with_first(f"{values[first]}s"),
            "in the wrong fields": sent([*values[1:], values[0]]),
            "all in one field": sent([SEPARATOR.join(values), *[""] * (len(values) - 1)]),
        }
        return ExampleEndStates(negatives, sent(values))

    async def is_sent(desktop: StageableDesktop) -> bool:
        return await scenario.sent(desktop) is not None

    async def share_of_values(desktop: StageableDesktop) -> float:
        sent = await scenario.sent(desktop) or {}
        return sum(sent.get(field) == value for field, value in scenario.values.items()) / len(scenario.values)

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        entries = await scenario.boxes(desktop)
        for field, value in scenario.values.items():
            yield [click_in(entries[field])]
            yield [Type(value)]
        (window,) = await desktop.wait_window("zenity")
        x, y = window.x + window.width - OK_FROM_RIGHT_PX, window.y + window.height - OK_FROM_BOTTOM_PX
        yield [Click(Point(x, y, screen_px(scenario.width, scenario.height)))]
        await wait_until(lambda: is_sent(desktop))
        yield [Done()]

    return scenario.build_task(
        f"Fill in the form and press OK: {wishes}. Leave the rest empty",
        max_steps=2 * len(scenario.values) + 4,
        check=check,
        oracle=oracle,
        milestones=(
            milestone("the form was sent off", 0.1, is_sent),
            milestone("asked values arrived", 0.3, share_of_values),
        ),
        example_end_states=end_states,
        forged_files=forged_files(end_states),
        metadata={"fields": scenario.fields, "values": scenario.values},
    )
