"""Long families across two or three programs: archive manager, code editor, terminal and note."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.archives import PLACE, ArchiveScenario, add_steps, extract_to
from deskhand.tasks.suites.basics.code_editor import FOLDER
from deskhand.tasks.suites.basics.cross_app import NOTE, note
from deskhand.tasks.suites.basics.hd_screen import HEIGHT, LEFT_PX, WIDTH, click_in, press
from deskhand.tasks.suites.basics.scenario import clause, milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.told_ends import read_tree
from deskhand.tasks.suites.basics.two_programs import RunScenario
from deskhand.tasks.task import ExampleEndStates, Milestone, Task


async def place_three(desktop: StageableDesktop, left: Window, upper: Window, lower: Window) -> None:
    """Place a window with 60 % of the screen's width, and two above each other next to it."""
    await hd_screen.side_by_side(desktop, left, upper)
    x, width, half = int(WIDTH * 0.6) + 4, WIDTH - int(WIDTH * 0.6) - 8, (HEIGHT - 32) // 2
    await desktop.place_window(upper, x, LEFT_PX[1], width, half - 24)
    await desktop.place_window(lower, x, LEFT_PX[1] + half, width, half)
    await hd_screen.wait_still(desktop, 0.3)


def saved_program(scenario: RunScenario, text: str) -> Milestone:
    """Return the milestone that the program in the code editor has this text."""

    async def is_saved(desktop: StageableDesktop) -> bool:
        return await read_file(desktop, f"{FOLDER}/{scenario.file}") == text.encode()

    return milestone("the program is saved", 0.3, is_saved)


async def set_limit(desktop: StageableDesktop, limit: int | str) -> AsyncIterator[list[Op]]:
    """Yield the steps that change the first line in the code editor."""
    yield [click_in((await desktop.wait_window("geany"))[0], 0.6, 0.4)]
    yield press("ctrl+home", "shift+end")
    yield [Type(f"limit = {limit}")]
    yield press("ctrl+s")
    await hd_screen.wait_still(desktop, 0.4)


async def run_program(desktop: StageableDesktop, name: str) -> AsyncIterator[list[Op]]:
    """Yield the steps that run a program in the terminal."""
    yield [click_in((await desktop.wait_window("xfce4-terminal"))[0])]
    yield [Type(f"python3 {name}\n")]
    await hd_screen.wait_still(desktop, 0.8)


@scenario_family(
    RunScenario,
    "code_feedback",
    "hard",
    "run a program in the terminal and set in the editor what it prints",
    "xfce4-terminal",
    abilities=("edit text", "use a shell", "work in several steps", "carry data between programs"),
)
def use_output(scenario: RunScenario) -> Task:
    name = scenario.file
    while scenario.printed(scenario.limits[name]) == str(scenario.limits[name]):
        scenario.limits[name] += 1
    scenario.texts[name] = scenario.text(scenario.limits[name])
    number = int(scenario.printed(scenario.limits[name]))
    other = next(value for value in (int(scenario.printed(number)), number + 1) if value != number)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in run_program(desktop, name):
            yield ops
        async for ops in set_limit(desktop, number):
            yield ops

    return scenario.edit_task(
        f"In the terminal run {name} with python3. Then set limit in its first line to the number that it printed, in "
        "the code editor, and save it",
        {name: scenario.text(number)},
        steps,
        milestone("the program was changed", 0.2, lambda desktop: _differs(desktop, scenario)),
        wrong={"of_a_second_run": {name: scenario.text(other)}, "one_more": {name: scenario.text(number + 1)}},
        oracle_knows=("python3",),
        max_steps=14,
    )


async def _differs(desktop: StageableDesktop, scenario: RunScenario) -> bool:
    data = await read_file(desktop, f"{FOLDER}/{scenario.file}")
    return data is not None and data != scenario.texts[scenario.file].encode()


@scenario_family(
    RunScenario,
    "code_run_note",
    "hard",
    "set what a note says in a program, run it, and write what it prints into the note",
    "xfce4-terminal",
    "mousepad",
    abilities=("edit text", "use a shell", "work in several steps", "carry data between programs"),
)
def run_to_note(scenario: RunScenario) -> Task:
    name, limit = scenario.file, scenario.limit
    said, answer = f"limit = {limit}\n", scenario.printed(scenario.limit)
    scenario.texts["note.txt"] = said
    before = scenario.printed(scenario.limits[name])
    other = next(value for value in (before, scenario.printed(limit + 1), f"{answer}0") if value != answer)

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await desktop.launch(["mousepad", f"{FOLDER}/note.txt"])
        (editor,), (terminal,), (text,) = [
            await desktop.wait_window(each) for each in ("geany", "xfce4-terminal", "mousepad")
        ]
        await place_three(desktop, editor, terminal, text)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in set_limit(desktop, limit):
            yield ops
        async for ops in run_program(desktop, name):
            yield ops
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield press("ctrl+end")
        yield [Type(answer)]
        yield press("ctrl+s")

    right = {name: scenario.text(limit)}
    return scenario.edit_task(
        f"note.txt says which limit {name} needs. Set it in the first line of {name} in the code editor and save it. "
        f"Run {name} in the terminal with python3, write the number that it prints into the last line of note.txt, "
        "below what is there, and save it",
        {**right, "note.txt": f"{said}{answer}\n"},
        steps,
        saved_program(scenario, right[name]),
        plain=lambda each, text: text.replace("\n\n", "\n") if each == "note.txt" else text,
        wrong={
            "the_program_is_not_changed": {name: scenario.texts[name]},
            "another_number": {"note.txt": f"{said}{other}\n"},
            "instead_of_the_line": {"note.txt": f"{answer}\n"},
        },
        setup=setup,
        oracle_knows=("python3",),
        max_steps=22,
    )


class ProgramArchiveScenario(ArchiveScenario):
    """The archive has programs, each of which prints a number."""

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng, programs = self.rng, {}
        for name in self.members:
            numbers = rng.randint(1000, 9999), rng.randint(100, 999), rng.choice([7919, 8443, 9973])
            programs[name.replace(".txt", ".py")] = numbers
        self.printed = {name: str(pow(*numbers)) for name, numbers in programs.items()}
        self.name = self.name.replace(".txt", ".py")
        self.pack({name: "print(pow({}, {}, {}))\n".format(*numbers).encode() for name, numbers in programs.items()})


@scenario_family(
    ProgramArchiveScenario,
    "archive_run",
    "hard",
    "extract a program, run it in the terminal, and write what it prints into a note",
    "xfce4-terminal",
    "mousepad",
    abilities=("manage files", "use a shell", "work in several steps", "carry data between programs"),
)
def extract_and_run(scenario: ProgramArchiveScenario) -> Task:
    name, folder, answer = scenario.name, scenario.folder, scenario.printed[scenario.name]
    extracted = f"{folder}/{name}"
    wanted = {**scenario.files, extracted: scenario.members[name]}
    other = next(each for each in scenario.printed if scenario.printed[each] != answer)

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await desktop.push(NOTE, b"")
        await desktop.launch(["xfce4-terminal", "--disable-server"], cwd=folder)
        await desktop.launch(["mousepad", NOTE])
        (archive,), (terminal,), (text,) = [
            await desktop.wait_window(each) for each in ("pack.tar.gz", "xfce4-terminal", "mousepad")
        ]
        await place_three(desktop, archive, terminal, text)
        scenario.x, scenario.y = LEFT_PX

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await read_tree(desktop, wanted)
        found.pop(NOTE, None)
        return [clause("the note", await note(desktop), answer), same_files("the files", found, wanted)]

    async def is_extracted(desktop: StageableDesktop) -> bool:
        return await read_file(desktop, extracted) == scenario.members[name]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.select(name)
        async for ops in extract_to(folder)(desktop):
            yield ops
        await hd_screen.wait_written(desktop, extracted, None)
        async for ops in run_program(desktop, name):
            yield ops
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield [Type(answer)]

    def end_states() -> ExampleEndStates:
        right = {**wanted, NOTE: f"{answer}\n".encode()}
        return near_misses(
            right,
            NOTE,
            of_another_program={**right, NOTE: scenario.printed[other].encode()},
            not_extracted={**scenario.files, NOTE: right[NOTE]},
            another_one_too={**right, f"{folder}/{other}": scenario.members[other]},
        )

    return scenario.build_task(
        f"In the archive manager extract the file {name} of pack.tar.gz, and only this one, into the folder {folder}. "
        "Run it in the terminal with python3, write the number that it prints into note.txt, and save it",
        setup=setup,
        clauses=clauses,
        oracle=hd_screen.until_written(NOTE, steps, press("ctrl+s")),
        example_end_states=end_states,
        oracle_knows=("/home/user", "python3"),
        max_steps=22,
        milestones=(milestone("the program is extracted", 0.3, is_extracted),),
    )


@scenario_family(
    ArchiveScenario,
    "archive_code",
    "hard",
    "change a program in the editor and add it to an archive",
    "geany",
    abilities=("edit text", "manage files", "use menus and dialogs", "work in several steps"),
)
def change_and_add(scenario: ArchiveScenario) -> Task:
    old, new = scenario.rng.sample(range(100, 999), 2)
    program = scenario.beside.replace(".txt", ".py")
    del scenario.files[f"{PLACE}/{scenario.beside}"]
    scenario.beside = program
    texts = {limit: f"limit = {limit}\n\nprint(limit * 3)\n".encode() for limit in (old, new, new + 1)}
    scenario.files[f"{PLACE}/{program}"] = texts[old]
    members = scenario.members

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await desktop.launch(["geany", f"{PLACE}/{program}"])
        (editor,) = await desktop.wait_window(f"{program} - ", timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.side_by_side(desktop, (await desktop.wait_window("pack.tar.gz"))[0], editor)
        scenario.x, scenario.y = LEFT_PX

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in set_limit(desktop, new):
            yield ops
        yield [click_in((await desktop.wait_window("pack.tar.gz"))[0], 0.6, 0.8)]
        async for ops in add_steps(scenario, desktop):
            yield ops

    async def is_saved(desktop: StageableDesktop) -> bool:
        return await read_file(desktop, f"{PLACE}/{program}") == texts[new]

    saved = {f"{PLACE}/{program}": texts[new]}
    return scenario.file_task(
        f"In the code editor set limit in {program} to {new} and save it. Then add {program}, which is in the folder "
        f"{PLACE}, to pack.tar.gz in the archive manager",
        steps,
        {**members, program: texts[new]},
        saved,
        wrong={
            "as it was before": ({**members, program: texts[old]}, saved),
            "it is not saved": ({**members, program: texts[new]}, {}),
            "another number": (
                {**members, program: texts[new + 1]},
                {f"{PLACE}/{program}": texts[new + 1]},
            ),
            "it is not added": (members, saved),
        },
        setup=setup,
        max_steps=18,
        milestones=(milestone("the program is saved", 0.3, is_saved),),
    )
