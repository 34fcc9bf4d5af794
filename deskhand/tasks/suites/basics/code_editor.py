"""Families `code_*`: several Python files in the code editor Geany. The saved files are judged, or an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import decode_text, read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, click_at, press
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.scenario import THEMES, milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.told_ends import told_task
from deskhand.tasks.task import ExampleEndStates, Milestone, Task

FOLDER = "Code"
STEMS = ("prices", "trains", "letters", "colors", "plants", "tables", "songs", "games")
FUNCTIONS = (
    "load", "count", "merge", "check", "shift", "clean", "group", "split", "weigh", "order", "paint", "guess",
    "press",
)  # fmt: skip
VARIABLES = ("total", "level", "width", "score", "depth", "speed")
QUESTION = "In the code editor find the function {} in {}, and answer with just the number of the line with its def"
REPLACE_ALL_PX = (57, 226)
"""Where Geany's dialog for replacing has the part that is folded up."""


class CodeScenario(HdScenario):
    """Python files in tabs of Geany; the last one is shown. `texts` by name have line feeds at their ends."""

    applications = ("geany",)
    num_files = 3

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        self.names = [f"{stem}.py" for stem in rng.sample(STEMS, self.num_files)]
        self.variable, self.other_variable, self.new_variable = rng.sample(VARIABLES, 3)
        self.unused, *functions = rng.sample(FUNCTIONS, 1 + 3 * self.num_files)
        self.functions = {name: functions[3 * index : 3 * index + 3] for index, name in enumerate(self.names)}
        self.limits = {name: rng.randint(10, 99) for name in self.names}
        self.texts = {name: self.program(name) for name in self.names}
        self.file = rng.choice(self.names)
        self.size = rng.randint(860, 1000), rng.randint(560, 640)
        ((self.x, self.y),) = scatter(rng, [self.size], self.width, self.height)

    def program(self, name: str) -> str:
        """Return a program of three functions of different lengths."""
        first, second = self.variable, self.other_variable
        parts = [f"limit = {self.limits[name]}\n"]
        for function in self.functions[name]:
            added = self.rng.sample(range(2, 99), self.rng.randint(1, 3))
            lines = [f"{first} = {first} + {number}" for number in added]
            body = [f"{first} = {self.rng.randint(2, 99)}", *lines, f"{second} = {first} * number", f"return {second}"]
            parts.append("".join([f"def {function}(number):\n", *(f"\t{line}\n" for line in body)]))
        return "\n".join([*parts, f"print({self.functions[name][0]}(limit))\n"])

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, text in self.texts.items():
            await desktop.push(f"{FOLDER}/{name}", text.encode())
        await desktop.launch(["geany", *(f"{FOLDER}/{name}" for name in self.names)])
        (window,) = await desktop.wait_window(f"{self.names[-1]} - ", timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await desktop.place_window(window, self.x, self.y, *self.size)
        await hd_screen.wait_still(desktop, 0.6)

    def show(self, name: str) -> list[Op]:
        """Return the keys that show a file's tab."""
        return press(f"alt+{self.names.index(name) + 1}")

    @property
    def files(self) -> dict[str, bytes]:
        return {f"{FOLDER}/{name}": text.encode() for name, text in self.texts.items()}

    def line_of(self, name: str, start: str) -> int:
        """Return the number, from 1, of the first line of a file that starts with this."""
        return next(
            number for number, line in enumerate(self.texts[name].splitlines(), 1) if line.strip().startswith(start)
        )

    def edit_task(
        self,
        instruction: str,
        wanted: Mapping[str, str],
        steps: Steps,
        *milestones: Milestone,
        plain: Callable[[str, str], str] = lambda name, text: text,
        wrong: Mapping[str, Mapping[str, str]] | None = None,
        max_steps: int = 15,
        **fields: Any,
    ) -> Task:
        """Return a task. `wanted` are the texts that change by name, `wrong` texts that are nearly right.

        `plain(name, text)` removes from a text what may differ.
        """
        expected = {name: text.rstrip("\n") for name, text in {**self.texts, **wanted}.items()}
        target = f"{FOLDER}/{max(wanted)}"

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            found = {name: decode_text(data) for name, data in (await read_folder(desktop, FOLDER)).items()}
            read = {name: plain(name, text.rstrip("\n")) if text is not None else None for name, text in found.items()}
            return [
                same_files("the files of the folder", read, {name: plain(name, expected[name]) for name in expected})
            ]

        def end_states() -> ExampleEndStates:
            right = {f"{FOLDER}/{name}": f"{text}\n".encode() for name, text in expected.items()}
            others = {
                what: right | {f"{FOLDER}/{name}": text.encode() for name, text in texts.items()}
                for what, texts in (wrong or {}).items()
            }
            return near_misses(right, target, **others)

        async def typed(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in hd_screen.play(desktop, steps):
                yield ops
                await hd_screen.wait_still(desktop, 0.2)

        return self.build_task(
            instruction,
            clauses=clauses,
            oracle=hd_screen.until_written(target, typed),
            milestones=milestones,
            example_end_states=end_states,
            max_steps=max_steps,
            **fields,
        )


def go_to(line: int) -> list[list[Op]]:
    """Return the steps that put the cursor at the start of a line."""
    return [press("ctrl+l"), [Type(f"{line}\n")], press("home")]


def select(first: int, last: int) -> list[list[Op]]:
    """Return the steps that select whole lines, one step for each."""
    return [*go_to(first), *([press("shift+down")] * (last - first)), press("shift+end")]


def changed_lines(text: str, first: int, last: int, change: Callable[[str], str]) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(change(line) if first <= number <= last else line for number, line in enumerate(lines, 1))


def draw_lines(scenario: CodeScenario) -> tuple[int, int]:
    """Return the first and last of two to four lines in a function of the scenario's file."""
    start = scenario.line_of(scenario.file, f"def {scenario.rng.choice(scenario.functions[scenario.file])}(")
    first = start + scenario.rng.randint(1, 2)
    return first, first + scenario.rng.randint(1, 2)


@scenario_family(
    CodeScenario,
    "code_replace",
    "medium",
    "rename a variable everywhere in one of several files",
    abilities=("edit text", "use menus and dialogs", "choose among windows"),
)
def replace_name(scenario: CodeScenario) -> Task:
    name, old, new = scenario.file, scenario.variable, scenario.new_variable
    wanted = {name: scenario.texts[name].replace(old, new)}
    once = {name: scenario.texts[name].replace(old, new, 1)}
    everywhere = {each: text.replace(old, new) for each, text in scenario.texts.items()}

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.show(name)
        yield press("ctrl+h")
        dialog = await hd_screen.wait_shown(desktop, "Replace")
        yield [*press("ctrl+a"), Type(old)]
        yield [*press("alt+h", "ctrl+a"), Type(new)]
        yield [click_at(dialog.x + REPLACE_ALL_PX[0], dialog.y + REPLACE_ALL_PX[1])]
        await hd_screen.wait_still(desktop, 0.4)
        yield press("alt+i")
        await hd_screen.wait_closed(desktop, "Replace")
        yield press("ctrl+s")

    return scenario.edit_task(
        f"In the code editor rename the variable {old} of {name} to {new}, everywhere in that file, and save it",
        wanted,
        steps,
        wrong={"only_once": once, "in_every_file": everywhere},
    )


@scenario_family(
    CodeScenario, "code_comment", "medium", "comment lines out", abilities=("edit text", "work in several steps")
)
def comment_out(scenario: CodeScenario) -> Task:
    name, (first, last) = scenario.file, draw_lines(scenario)
    text = scenario.texts[name]

    def marked(start: int, end: int) -> str:
        return changed_lines(text, start, end, lambda line: f"# {line}")

    def same_mark(line: str) -> str:
        """Return the line with one kind of mark: Geany's is "#~ " or "# ~ ", before or after the indentation."""
        squeezed = "".join(line.split())
        return f"#{squeezed.lstrip('#').removeprefix('~')}\n" if squeezed.startswith("#") else line

    return scenario.edit_task(
        f"In the code editor comment out lines {first} to {last} of {name}, and save it",
        {name: marked(first, last)},
        [scenario.show(name), *select(first, last), press("ctrl+e"), press("ctrl+s")],
        plain=lambda each, text: changed_lines(text, first, last, same_mark) if each == name else text,
        wrong={"one_more": {name: marked(first, last + 1)}, "the_first_only": {name: marked(first, first)}},
    )


@scenario_family(
    CodeScenario, "code_indent", "medium", "indent lines", abilities=("edit text", "work in several steps")
)
def indent(scenario: CodeScenario) -> Task:
    name, (first, last) = scenario.file, draw_lines(scenario)
    text = scenario.texts[name]

    def indented(start: int, end: int, by: str = "\t") -> dict[str, str]:
        return {name: changed_lines(text, start, end, lambda line: f"{by}{line}")}

    return scenario.edit_task(
        f"In the code editor indent lines {first} to {last} of {name} by one more level, and save it",
        indented(first, last),
        [scenario.show(name), *select(first, last), press("ctrl+i"), press("ctrl+s")],
        plain=lambda each, text: text.replace("    ", "\t"),
        wrong={"one_less": indented(first + 1, last), "by_two_levels": indented(first, last, "\t\t")},
    )


@scenario_family(
    CodeScenario, "code_line_out", "easy", "delete a line of one of several files", abilities=("edit text",)
)
def take_line_out(scenario: CodeScenario) -> Task:
    name, (number, _) = scenario.file, draw_lines(scenario)
    text = scenario.texts[name]
    wrong = {"the_line_before": number - 1, "the_line_below": number + 2}
    return scenario.edit_task(
        f"In the code editor delete line {number} of {name}, and save it",
        {name: changed_lines(text, number, number, lambda line: "")},
        [scenario.show(name), *go_to(number), press("ctrl+k"), press("ctrl+s")],
        wrong={what: {name: changed_lines(text, each, each, lambda line: "")} for what, each in wrong.items()},
    )


@scenario_family(
    CodeScenario,
    "code_save_as",
    "easy",
    "save a file under another name",
    abilities=("use menus and dialogs", "manage files"),
)
def save_as(scenario: CodeScenario) -> Task:
    name, other = scenario.rng.sample(scenario.names, 2)
    new = scenario.rng.choice([stem for stem in STEMS if f"{stem}.py" not in scenario.texts]) + ".py"

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.show(name)
        yield press("alt+f", "a")
        await hd_screen.wait_shown(desktop, "Save File")
        yield [*press("ctrl+a"), Type(new)]
        yield press("enter")

    return scenario.edit_task(
        f"In the code editor save a copy of {name} as {new} in the same folder; leave {name} as it is",
        {new: scenario.texts[name]},
        steps,
        wrong={"of_another_file": {new: scenario.texts[other]}, "it_is_empty": {new: ""}},
    )


@scenario_family(
    CodeScenario,
    "code_function",
    "hard",
    "copy a function from one file to the end of another",
    abilities=("edit text", "find something", "work in several steps"),
)
def copy_function(scenario: CodeScenario) -> Task:
    name, other = scenario.rng.sample(scenario.names, 2)
    function = scenario.rng.choice(scenario.functions[name][:2])
    lines = scenario.texts[name].splitlines()
    first = scenario.line_of(name, f"def {function}(")
    last = next(number for number in range(first, len(lines)) if not lines[number])
    copied = "".join(f"{line}\n" for line in lines[first - 1 : last])

    async def is_saved(desktop: StageableDesktop) -> bool:
        return await read_file(desktop, f"{FOLDER}/{other}") not in (None, scenario.texts[other].encode())

    async def has_def(desktop: StageableDesktop) -> bool:
        return f"def {function}(".encode() in (await read_file(desktop, f"{FOLDER}/{other}") or b"")

    def dense(each: str, text: str) -> str:
        return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) if each == other else text

    start = scenario.texts[other]
    return scenario.edit_task(
        f"In the code editor copy the function {function} of {name} to the end of {other}, and save {other}",
        {other: start + copied},
        [
            scenario.show(name),
            *select(first, last),
            press("ctrl+c"),
            scenario.show(other),
            press("ctrl+end"),
            press("ctrl+v"),
            press("ctrl+s"),
        ],
        milestone("the other file was saved", 0.1, is_saved),
        milestone("it has the def of the function", 0.2, has_def),
        plain=dense,
        wrong={
            "a_line_is_missing": {other: start + "".join(copied.splitlines(keepends=True)[:-1])},
            "at_its_beginning": {other: copied + start},
            "it_is_moved": {other: start + copied, name: scenario.texts[name].replace(copied, "")},
        },
        oracle_follows={str(first): (f"{function} [{first}]",)},
        max_steps=24,
    )


class TabsScenario(CodeScenario):
    """Four short files."""

    num_files = 4

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.texts = {name: f"limit = {limit}\n\nprint(limit * 3)\n" for name, limit in self.limits.items()}


@scenario_family(
    TabsScenario,
    "code_every_tab",
    "hard",
    "change a line in each of four files",
    abilities=("edit text", "choose among windows", "work in several steps"),
)
def change_every_file(scenario: TabsScenario) -> Task:
    number = scenario.rng.randint(100, 999)
    wanted = dict.fromkeys(scenario.names, f"limit = {number}\n\nprint(limit * 3)\n")
    steps: list[list[Op]] = []
    for name in sorted(scenario.names):
        steps += [scenario.show(name), press("ctrl+home", "shift+end"), [Type(f"limit = {number}")], press("ctrl+s")]

    async def share_changed(desktop: StageableDesktop) -> float:
        found = await read_folder(desktop, FOLDER)
        return sum(found.get(name) == text.encode() for name, text in wanted.items()) / len(wanted)

    first = scenario.names[0]
    return scenario.edit_task(
        f"In the code editor set limit to {number} in the first line of each of the four files, and save them all",
        wanted,
        steps,
        milestone("files are changed", 0.4, share_changed),
        wrong={
            "one_is_not_changed": {first: scenario.texts[first]},
            "another_number": {first: wanted[first].replace(str(number), str(number + 1))},
        },
        max_steps=30,
    )


@scenario_family(
    CodeScenario,
    "code_line",
    "easy",
    "say in which line a function begins",
    abilities=("find something", "read and compare", "answer a question"),
)
def find_function(scenario: CodeScenario) -> Task:
    function = scenario.rng.choice(scenario.functions[scenario.file][1:])
    number = scenario.line_of(scenario.file, f"def {function}(")
    return told_task(
        scenario,
        QUESTION.format(function, scenario.file),
        scenario.files,
        [scenario.show(scenario.file)],
        str(number),
        wrong_answers=[str(number - 1), str(number + 1), function],
        follows={str(number): (f"{function} [{number}]",)},
    )


@scenario_family(
    CodeScenario,
    "code_line_missing",
    "easy",
    "find the line of a function that does not exist",
    abilities=("find something", "recognize an infeasible task"),
)
def find_missing_function(scenario: CodeScenario) -> Task:
    text = QUESTION.format(scenario.unused, scenario.file)
    return told_task(scenario, text, scenario.files, [scenario.show(scenario.file)], None)
