"""Families `view_*`: a folder of pictures in the image viewer GPicView. The files are judged, or an answer."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping

from PIL import Image, ImageDraw

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import list_folder, read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, click_in, press
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.pictures import open_picture, same_pixels
from deskhand.tasks.suites.basics.scenario import THEMES, clause, milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.screen_search import wait_until
from deskhand.tasks.suites.basics.told_ends import read_tree, told_task
from deskhand.tasks.task import ExampleEndStates, FileContents, Task

FOLDER = "Pictures"
STEMS = ("apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "jewel", "lemon")
SHAPES, COLORS = ("circle", "square", "triangle"), ("red", "blue", "green", "black")
QUESTION = (
    "In the image viewer look through the pictures of the folder and find the one that shows a {}. Answer with just "
    "the name of its file"
)


class ViewerScenario(HdScenario):
    """Six pictures of one shape each, of which the viewer shows the first by name."""

    applications = ("gpicview",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        self.names = [f"{stem}.png" for stem in sorted(rng.sample(STEMS, 6))]
        every = [f"{color} {shape}" for color in COLORS for shape in SHAPES]
        *shown, self.missing = rng.sample(every, 7)
        self.shown = dict(zip(self.names, shown, strict=True))
        self.pictures = {name: self.draw(*what.split()) for name, what in self.shown.items()}
        self.size = rng.randint(560, 720), rng.randint(420, 540)
        ((self.x, self.y),) = scatter(rng, [self.size], self.width, self.height)

    def draw(self, color: str, shape: str) -> Image.Image:
        rng = self.rng
        width, height, size = rng.randrange(240, 400, 8), rng.randrange(200, 320, 8), rng.randint(60, 110)
        tint = tuple(rng.randint(225, 250) for _ in range(3))
        picture = Image.new("RGB", (width, height), (tint[0], tint[1], tint[2]))
        x, y = rng.randint(8, width - size - 8), rng.randint(8, height - size - 8)
        pen, box = ImageDraw.Draw(picture), (x, y, x + size, y + size)
        if shape == "circle":
            pen.ellipse(box, fill=color)
        elif shape == "square":
            pen.rectangle(box, fill=color)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=color)
        return picture

    @property
    def files(self) -> FileContents:
        return {f"{FOLDER}/{name}": png(picture) for name, picture in self.pictures.items()}

    async def setup(self, desktop: StageableDesktop) -> None:
        for path, data in self.files.items():
            await desktop.push(path, data)
        await desktop.launch(["gpicview", f"{FOLDER}/{self.names[0]}"])
        (window,) = await desktop.wait_window(self.names[0])
        await desktop.place_window(window, self.x, self.y, *self.size)
        await hd_screen.wait_still(desktop, 0.6)

    def turn_to(self, name: str) -> Steps:
        """Return the steps that show the pictures one after the other, up to this one."""
        return [press("right")] * self.names.index(name)

    async def other_files(self, desktop: StageableDesktop, *without: str) -> dict[str, bytes | None]:
        found = await read_tree(desktop, self.files)
        return {path: data for path, data in found.items() if path not in without}


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def find_task(scenario: ViewerScenario, asked: str, answer: str | None) -> Task:
    """Return a task that asks for a picture; `answer` None: there is none."""
    wrong = [name for name in scenario.names if name != answer]
    steps = scenario.turn_to(answer or scenario.names[-1])
    return told_task(scenario, QUESTION.format(asked), scenario.files, steps, answer, wrong_answers=wrong)


@scenario_family(
    ViewerScenario,
    "view_find",
    "easy",
    "find the picture in a folder that shows something",
    abilities=("find something", "answer a question"),
)
def find_picture(scenario: ViewerScenario) -> Task:
    name = scenario.rng.choice(scenario.names[1:])
    return find_task(scenario, scenario.shown[name], name)


@scenario_family(
    ViewerScenario,
    "view_find_missing",
    "easy",
    "find a picture that is not in the folder",
    abilities=("find something", "recognize an infeasible task"),
)
def find_missing_picture(scenario: ViewerScenario) -> Task:
    return find_task(scenario, scenario.missing, None)


@scenario_family(
    ViewerScenario,
    "view_turn",
    "medium",
    "find a picture, rotate it and save it",
    abilities=("edit a picture", "find something", "use menus and dialogs"),
)
def turn_picture(scenario: ViewerScenario) -> Task:
    name = scenario.rng.choice(scenario.names[1:])
    way, key, turn, back = scenario.rng.choice([
        ("right (clockwise)", "r", Image.Transpose.ROTATE_270, Image.Transpose.ROTATE_90),
        ("left (counterclockwise)", "l", Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270),
    ])  # fmt: skip
    path, start = f"{FOLDER}/{name}", scenario.pictures[name]
    others = {each: data for each, data in scenario.files.items() if each != path}

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        picture = await open_picture(await read_file(desktop, path))
        return [
            same_pixels(picture, start.transpose(turn)),
            same_files("the other files", await scenario.other_files(desktop, path), others),
        ]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in shown_one_by_one(desktop, scenario.turn_to(name)):
            yield ops
        yield press(key)
        await hd_screen.wait_still(desktop, 0.4)
        yield press("s")
        await hd_screen.wait_still(desktop, 0.4)
        yield press("alt+y")

    def end_states() -> ExampleEndStates:
        right, other = {**others, path: png(start.transpose(turn))}, min(others)
        return ExampleEndStates(
            {
                "the other way": {**right, path: png(start.transpose(back))},
                "by half a turn": {**right, path: png(start.transpose(Image.Transpose.ROTATE_180))},
                "another picture too": {**right, other: png(scenario.pictures[other.split("/")[1]].transpose(turn))},
                "a copy is left": {**right, f"{FOLDER}/copy.png": png(start)},
            },
            right,
        )

    return scenario.build_task(
        f"In the image viewer find the picture that shows a {scenario.shown[name]}, rotate it 90 degrees to the "
        f"{way}, and save it under its name",
        clauses=clauses,
        oracle=hd_screen.until_written(path, steps),
        example_end_states=end_states,
        max_steps=16,
    )


async def shown_one_by_one(desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    async for ops in hd_screen.play(desktop, steps):
        yield ops
        await hd_screen.wait_still(desktop, 0.3)


@scenario_family(
    ViewerScenario,
    "view_delete",
    "medium",
    "find a picture and delete it",
    abilities=("manage files", "find something", "use menus and dialogs"),
)
def delete_picture(scenario: ViewerScenario) -> Task:
    name = scenario.rng.choice(scenario.names[1:])
    files = scenario.files
    left = {path: data for path, data in files.items() if path != f"{FOLDER}/{name}"}
    other = max(left)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [same_files("the files", await scenario.other_files(desktop), left)]

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in shown_one_by_one(desktop, scenario.turn_to(name)):
            yield ops
        yield press("delete")
        await hd_screen.wait_still(desktop, 0.4)

        async def is_gone() -> bool:
            return name not in await list_folder(desktop, FOLDER)

        yield press("alt+y")
        await wait_until(is_gone, 5.0)

    def end_states() -> ExampleEndStates:
        without_other = {path: data for path, data in files.items() if path != other}
        both = {path: data for path, data in left.items() if path != other}
        moved = {**left, f"{FOLDER}/old.png": files[f"{FOLDER}/{name}"]}
        return ExampleEndStates(
            {"another one": without_other, "two": both, "it is renamed": moved, "one is empty": {**left, other: b""}},
            left,
        )

    return scenario.build_task(
        f"In the image viewer find the picture that shows a {scenario.shown[name]}, and delete its file",
        clauses=clauses,
        oracle=oracle,
        example_end_states=end_states,
        max_steps=14,
    )


@scenario_family(
    ViewerScenario,
    "view_to_note",
    "hard",
    "describe the pictures of a folder in a note",
    "mousepad",
    abilities=("find something", "edit text", "work in several steps", "carry data between programs"),
)
def pictures_to_note(scenario: ViewerScenario) -> Task:
    names = scenario.rng.sample(scenario.names, 3)
    said = "".join(f"{name}\n" for name in names)
    wanted = {name: scenario.shown[name] for name in names}
    files = scenario.files

    def written(shown: Mapping[str, str]) -> list[str]:
        return [f"{name} {what}" for name, what in shown.items()]

    async def lines(desktop: StageableDesktop) -> list[str]:
        return [" ".join(line.lower().split()) for line in (await note(desktop) or "").splitlines()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [
            clause("the lines of the note", await lines(desktop), written(wanted)),
            same_files("the files", await scenario.other_files(desktop), files),
        ]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("gpicview"))[0])]
        async for ops in shown_one_by_one(desktop, scenario.turn_to(max(names))):
            yield ops
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield press("ctrl+home")
        for what in wanted.values():
            yield press("end")
            yield [Type(f" {what}")]
            yield press("down")

    async def share_written(desktop: StageableDesktop) -> float:
        found = await lines(desktop)
        return sum(line in found for line in written(wanted)) / len(wanted)

    def end_states() -> ExampleEndStates:
        def state(shown: Mapping[str, str]) -> FileContents:
            return {**files, NOTE: "\n".join(written(shown)).encode()}

        swapped = dict(zip(names, list(wanted.values())[::-1], strict=True))
        return near_misses(
            state(wanted),
            NOTE,
            swapped=state(swapped),
            another_color=state({**wanted, names[0]: scenario.missing}),
            only_two=state({name: wanted[name] for name in names[:2]}),
        )

    return scenario.build_task(
        "Look at the pictures that note.txt names, in the image viewer. Behind each name write the color and the shape "
        f"that the picture shows, as in {scenario.names[0]} {scenario.missing}, and save the note",
        setup=lambda desktop: open_beside(scenario, desktop, "gpicview", said),
        clauses=clauses,
        oracle=hd_screen.until_written(NOTE, steps, press("ctrl+s")),
        oracle_knows=(*COLORS, *SHAPES),
        example_end_states=end_states,
        max_steps=26,
        milestones=(milestone("lines are written", 0.4, share_written),),
    )
