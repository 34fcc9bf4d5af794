"""Families in which a note says what is to be done in another program, or is filled in with what that shows."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.archives import ArchiveScenario
from deskhand.tasks.suites.basics.code_editor import FOLDER, TabsScenario
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside
from deskhand.tasks.suites.basics.hd_screen import click_in, press
from deskhand.tasks.suites.basics.scenario import clause, milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.terminal_answers import QuestionScenario
from deskhand.tasks.suites.basics.terminal_files import FOLDER as PAPERS
from deskhand.tasks.suites.basics.terminal_files import STEMS
from deskhand.tasks.task import ExampleEndStates, Task


@scenario_family(
    TabsScenario,
    "note_to_code",
    "hard",
    "set numbers in several programs as a note says",
    "mousepad",
    abilities=("edit text", "choose among windows", "work in several steps", "carry data between programs"),
)
def note_to_code(scenario: TabsScenario) -> Task:
    names = scenario.rng.sample(scenario.names, 3)
    limits = dict(zip(names, scenario.rng.sample(range(100, 999), 3), strict=True))
    said = "".join(f"{name}: {limit}\n" for name, limit in limits.items())
    scenario.texts["note.txt"] = said
    wanted = {name: scenario.texts[name].replace(str(scenario.limits[name]), str(limits[name])) for name in names}
    steps: list[list[Op]] = []
    for name in names:
        steps += [scenario.show(name), press("ctrl+home", "shift+end"), [Type(f"limit = {limits[name]}")]]
        steps.append(press("ctrl+s"))

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await open_note(desktop, "geany", f"{FOLDER}/note.txt")

    async def in_editor(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("geany"))[0], 0.6, 0.4)]
        for ops in steps:
            yield ops

    async def share_changed(desktop: StageableDesktop) -> float:
        found = await read_folder(desktop, FOLDER)
        return sum(found.get(name) == text.encode() for name, text in wanted.items()) / len(wanted)

    first, second, _ = names
    (left,) = set(scenario.names) - set(names)
    swapped = {one: wanted[one].replace(str(limits[one]), str(limits[two])) for one, two in ((first, second),)}
    return scenario.edit_task(
        "note.txt says which limit three of the four programs need. Set limit in the first line of each of these three "
        f"in the code editor, and save them; {left} and the note stay as they are",
        wanted,
        in_editor,
        milestone("programs are changed", 0.4, share_changed),
        wrong={"one_is_not_changed": {first: scenario.texts[first]}, "the_number_of_another": swapped},
        setup=setup,
        max_steps=26,
    )


async def open_note(desktop: StageableDesktop, title: str, path: str) -> None:
    """Open a text file next to the window with `title`."""
    await desktop.launch(["mousepad", path])
    (editor,) = await desktop.wait_window("mousepad")
    await hd_screen.side_by_side(desktop, (await desktop.wait_window(title))[0], editor)


@scenario_family(
    ArchiveScenario,
    "note_to_archive",
    "hard",
    "delete the files that a note names from an archive",
    "mousepad",
    abilities=("manage files", "use menus and dialogs", "work in several steps", "carry data between programs"),
)
def note_to_archive(scenario: ArchiveScenario) -> Task:
    word, count = scenario.rng.choice([("two", 2), ("three", 3)])
    kept, *names = scenario.rng.sample(list(scenario.members), 1 + count)
    listed = "".join(f"{name}\n" for name in names)
    scenario.files[NOTE] = f"Please delete these files:\n{listed}".encode()

    def without(*gone: str) -> dict[str, bytes]:
        return {name: data for name, data in scenario.members.items() if name not in gone}

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await open_note(desktop, "pack.tar.gz", NOTE)
        scenario.x, scenario.y = hd_screen.LEFT_PX

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        shown = dict(scenario.members)
        for name in names:
            yield scenario.select(name, shown)
            yield press("delete")
            await hd_screen.wait_still(desktop, 0.4)
            yield press("alt+o")
            await hd_screen.wait_still(desktop, 0.6)
            del shown[name]

    async def share_deleted(desktop: StageableDesktop) -> float:
        packed = await scenario.packed(desktop)
        return sum(name not in packed for name in names) / count if packed else 0.0

    return scenario.file_task(
        f"In the archive manager delete the {word} files from pack.tar.gz that note.txt names, and nothing else",
        steps,
        without(*names),
        wrong={
            "only one": (without(names[0]), {}),
            "another one": (without(*names[1:], kept), {}),
            "one too many": (without(*names, kept), {}),
            "the note is empty": (without(*names), {NOTE: b""}),
        },
        setup=setup,
        max_steps=18,
        milestones=(milestone("files are deleted", 0.4, share_deleted),),
    )


@scenario_family(
    QuestionScenario,
    "note_rename",
    "hard",
    "rename files as a note says",
    "mousepad",
    abilities=("use a shell", "manage files", "work in several steps", "carry data between programs"),
)
def note_rename(scenario: QuestionScenario) -> Task:
    word, count = scenario.rng.choice([("three", 3), ("four", 4)])
    old = scenario.rng.sample(scenario.names, count)
    new = [f"{stem}.{scenario.rng.choice(['old', 'doc', 'bak'])}" for stem in scenario.rng.sample(STEMS, count)]
    said = "".join(f"{one} becomes {other}\n" for one, other in zip(old, new, strict=True))
    names = {**{name: name for name in scenario.names}, **dict(zip(old, new, strict=True))}
    wanted = {new: scenario.files[name] for name, new in names.items()}

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await read_folder(desktop, PAPERS)
        return [
            same_files("the files of the folder", found, wanted),
            clause("the note", await note(desktop), said.strip()),
        ]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("xfce4-terminal"))[0])]
        for one, other in zip(old, new, strict=True):
            yield [Type(f"mv {one} {other}")]
            yield press("enter")

    async def share_renamed(desktop: StageableDesktop) -> float:
        found = await read_folder(desktop, PAPERS)
        return sum(found.get(name) == wanted[name] for name in new) / count

    def end_states() -> ExampleEndStates:
        right = {NOTE: said.encode(), **{f"{PAPERS}/{name}": data for name, data in wanted.items()}}
        copied = {f"{PAPERS}/{name}": scenario.files[name] for name in old}
        path, second = (f"{PAPERS}/{name}" for name in new[:2])
        swapped = {path: right[second], second: right[path]}
        return near_misses(right, path, copied={**right, **copied}, swapped={**right, **swapped})

    return scenario.build_task(
        f"In the terminal rename {word} files of the folder as note.txt says; contents and the note stay as they are",
        setup=lambda desktop: open_beside(scenario, desktop, "xfce4-terminal", said),
        clauses=clauses,
        oracle=hd_screen.until_written(f"{PAPERS}/{new[-1]}", steps),
        example_end_states=end_states,
        oracle_knows=("mv",),
        max_steps=14,
        milestones=(milestone("files are renamed", 0.4, share_renamed),),
    )


@scenario_family(
    QuestionScenario,
    "shell_to_note",
    "hard",
    "write the sizes of several files behind their names in a note",
    "mousepad",
    abilities=("use a shell", "edit text", "work in several steps", "carry data between programs"),
)
def shell_to_note(scenario: QuestionScenario) -> Task:
    names = scenario.rng.sample(scenario.names, 3)
    unit, option = scenario.rng.choice([("lines", "-l"), ("bytes", "-c")])
    counts = {name: data.count(b"\n") if unit == "lines" else len(data) for name, data in scenario.files.items()}
    said = "".join(f"{name}\n" for name in names)
    wanted = [f"{name} {counts[name]}" for name in names]
    files = {f"{PAPERS}/{name}": data for name, data in scenario.files.items()}

    async def lines(desktop: StageableDesktop) -> list[str]:
        return [" ".join(line.split()) for line in (await note(desktop) or "").splitlines()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = {f"{PAPERS}/{name}": data for name, data in (await read_folder(desktop, PAPERS)).items()}
        return [clause("the lines of the note", await lines(desktop), wanted), same_files("the files", found, files)]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("xfce4-terminal"))[0])]
        yield [Type(f"wc {option} *\n")]
        await hd_screen.wait_still(desktop, 0.6)
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield press("ctrl+home")
        for name in names:
            yield press("end")
            yield [Type(f" {counts[name]}")]
            yield press("down")

    async def share_written(desktop: StageableDesktop) -> float:
        found = await lines(desktop)
        return sum(line in found for line in wanted) / len(wanted)

    def end_states() -> ExampleEndStates:
        right = {**files, NOTE: "".join(f"{line}\n" for line in wanted).encode()}
        swapped = [f"{name} {counts[other]}" for name, other in zip(names, names[::-1], strict=True)]
        return near_misses(
            right,
            NOTE,
            only_two={**right, NOTE: "\n".join([*wanted[:2], names[2]]).encode()},
            swapped={**right, NOTE: "\n".join(swapped).encode()},
            one_too_many={**right, NOTE: "\n".join([*wanted, "total"]).encode()},
        )

    return scenario.build_task(
        f"In the terminal find out how many {unit} each file has that note.txt names. Write the number behind the name "
        "in note.txt, with a space between them, and save it",
        setup=lambda desktop: open_beside(scenario, desktop, "xfce4-terminal", said),
        clauses=clauses,
        oracle=hd_screen.until_written(NOTE, steps, press("ctrl+s")),
        example_end_states=end_states,
        oracle_knows=("wc -l", "wc -c"),
        max_steps=24,
        milestones=(milestone("lines are written", 0.4, share_written),),
    )
