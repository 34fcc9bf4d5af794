"""Families in which one program shows or does what the other needs: an editor and a terminal, an archive and a note."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.archives import ArchiveScenario
from deskhand.tasks.suites.basics.code_editor import FOLDER, CodeScenario
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside, write_note
from deskhand.tasks.suites.basics.hd_screen import click_in, press
from deskhand.tasks.suites.basics.scenario import clause, milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.told_ends import read_tree, told_task
from deskhand.tasks.task import ExampleEndStates, Task


class RunScenario(CodeScenario):
    """One program in Geany, and a terminal in its folder. What it prints depends on its limit."""

    num_files = 1

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.factor, self.base = self.rng.randint(1000, 9999), self.rng.choice([7919, 8443, 9973])
        self.limit = self.rng.randint(100, 999)
        self.texts = {self.file: self.text(self.limits[self.file])}

    def text(self, limit: int) -> str:
        return f"limit = {limit}\n\nprint(pow({self.factor}, limit, {self.base}))\n"

    def printed(self, limit: int) -> str:
        return str(pow(self.factor, limit, self.base))

    async def setup(self, desktop: StageableDesktop) -> None:
        await super().setup(desktop)
        await desktop.launch(["xfce4-terminal", "--disable-server"], cwd=FOLDER)
        (terminal,) = await desktop.wait_window("xfce4-terminal")
        (editor,) = await desktop.wait_window("geany")
        await hd_screen.side_by_side(desktop, editor, terminal)


@scenario_family(
    RunScenario,
    "code_run",
    "hard",
    "change a program in the editor, run it in the terminal and say what it prints",
    "xfce4-terminal",
    abilities=("edit text", "use a shell", "answer a question", "work in several steps"),
)
def run_program(scenario: RunScenario) -> Task:
    name, limit = scenario.file, scenario.limit
    expected = {f"{FOLDER}/{name}": scenario.text(limit).encode()}

    async def is_saved(desktop: StageableDesktop) -> bool:
        return await read_file(desktop, f"{FOLDER}/{name}") == expected[f"{FOLDER}/{name}"]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("geany"))[0], 0.6, 0.4)]
        yield press("ctrl+home", "shift+end")
        yield [Type(f"limit = {limit}")]
        yield press("ctrl+s")
        await hd_screen.wait_still(desktop, 0.4)
        yield [click_in((await desktop.wait_window("xfce4-terminal"))[0])]
        yield [Type(f"python3 {name}\n")]
        await hd_screen.wait_still(desktop, 0.8)

    wrong = [scenario.printed(scenario.limits[name]), *(scenario.printed(limit + by) for by in (1, 2, 3))]
    text = f"In the code editor set limit in {name} to {limit} and save it. Then run it in the terminal with python3"
    answer = scenario.printed(limit)
    return told_task(
        scenario,
        f"{text}, and answer with just the number that it prints",
        expected,
        steps,
        answer,
        wrong_answers=[each for each in wrong if each != answer],
        max_steps=14,
        milestones=(milestone("the program is saved", 0.3, is_saved),),
        oracle_knows=("python3",),
    )


@scenario_family(
    ArchiveScenario,
    "archive_note",
    "medium",
    "copy a fact about an archive to a note",
    "mousepad",
    abilities=("read and compare", "carry data between programs"),
)
def archive_to_note(scenario: ArchiveScenario) -> Task:
    sizes = {name: len(data) for name, data in scenario.members.items()}
    by_size = sorted(sizes, key=lambda name: sizes[name])
    asked, answer = scenario.rng.choice([
        ("the name of its largest file", by_size[-1]),
        ("the name of its smallest file", by_size[0]),
        (f"how many bytes its file {scenario.name} has", str(sizes[scenario.name])),
    ])  # fmt: skip

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await read_tree(desktop, scenario.files)
        found.pop(NOTE, None)
        return [clause("the note", await note(desktop), answer), same_files("the files", found, scenario.files)]

    def end_states() -> ExampleEndStates:
        right = {**scenario.files, NOTE: f"{answer}\n".encode()}
        return near_misses(
            right,
            NOTE,
            another_file={**right, NOTE: by_size[2].encode()},
            more_than_that={**right, NOTE: f"{answer}.".encode()},
            the_archive_is_empty={**right, scenario.archive: b""},
        )

    return scenario.build_task(
        f"The archive manager shows pack.tar.gz. Write {asked} into note.txt, and nothing else, and save it",
        setup=lambda desktop: open_beside(scenario, desktop, "pack.tar.gz"),
        clauses=clauses,
        oracle=write_note(answer),
        example_end_states=end_states,
        max_steps=8,
    )
