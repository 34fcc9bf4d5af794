"""Work with files in a terminal on the wide screen. Invariant: every file of the folders is judged as it is on the disk; how it
came about is the agent's business, since a terminal is given.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.tasks import isolated, readers
from deskhand.tasks.outcome import Finding
from deskhand.tasks.readers import NotOfItsFormat
from deskhand.tasks.suites.basics import wide
from deskhand.tasks.suites.basics.layout import folder_names
from deskhand.tasks.suites.basics.screen import THEMES, folder_contents
from deskhand.tasks.suites.basics.wide import clause, click_in, press, wide_task
from deskhand.tasks.task import Family, StagedDesktopLike, Task, Tier

FOLDER = "Papers"
STEMS = ("bill", "letter", "plan", "list", "draft", "photo", "poem", "table", "index", "report")
WORDS = ("apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "island", "jewel", "lemon", "melon", "north")
PLACES = ("north", "south", "east", "west")


class Scene:
    """A terminal in a folder of files; a pure function of family and seed."""

    def __init__(self, family: str, seed: int) -> None:
        self.rng = random.Random(f"{family}:{seed}")
        self.family, self.seed = family, seed
        self.theme = self.rng.choice(THEMES)
        self.size = (self.rng.randint(80, 110), self.rng.randint(20, 28))
        self.files: dict[str, bytes] = {}
        """By path relative to the folder."""

    async def setup(self, desktop: StagedDesktopLike) -> None:
        for path, data in self.files.items():
            await desktop.push(f"{FOLDER}/{path}", data)
        geometry = f"--geometry={self.size[0]}x{self.size[1]}"
        await desktop.launch(["xfce4-terminal", "--disable-server", geometry], cwd=FOLDER)
        await desktop.wait_window("xfce4-terminal")
        await wide.still(desktop, 0.4)

    def build(self, instruction: str, command: str, clauses: wide.Clauses, result: str, tier: Tier = "medium") -> Task:
        """`command` is what the oracle types, `result` the file that it makes last."""

        async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
            (window,) = await desktop.wait_window("xfce4-terminal")
            yield [click_in(window)]
            yield [Type(command)]
            yield press("enter")
            await wide.written(desktop, f"{FOLDER}/{result}", None)
            yield [Done()]

        return wide_task(
            self.family,
            self.seed,
            tier,
            instruction=instruction,
            setup=self.setup,
            clauses=clauses,
            oracle=oracle,
            max_steps=8,
            theme=self.theme,
        )

    def text(self) -> bytes:
        return "".join(f"{self.rng.choice(WORDS)} {self.rng.randint(1, 99)}\n" for _ in range(self.rng.randint(2, 6))).encode()


def sort_lines(seed: int) -> Task:
    """Sort the lines of a file, without doubles, into another."""
    scene = Scene("shell_sort", seed)
    lines = scene.rng.choices(WORDS, k=scene.rng.randint(12, 20))
    lines += scene.rng.sample(lines, 3)
    result = f"{scene.rng.choice(STEMS)}.txt"
    scene.files["words.txt"] = "".join(f"{line}\n" for line in lines).encode()
    wanted = "".join(f"{line}\n" for line in sorted(set(lines))).encode()

    async def clauses(desktop: StagedDesktopLike) -> list[Finding]:
        return [clause("the files of the folder", await folder_contents(desktop, FOLDER), scene.files | {result: wanted})]

    text = f"In the terminal write the lines of words.txt into {result}, sorted from A to Z and each only once"
    return scene.build(text, f"sort -u words.txt > {result}", clauses, result)


def pack(seed: int) -> Task:
    """Pack some of the files."""
    scene = Scene("shell_pack", seed)
    kind, other = scene.rng.sample(["txt", "csv", "log"], 2)
    stems = scene.rng.sample(STEMS, 6)
    for index, stem in enumerate(stems):
        scene.files[f"{stem}.{kind if index < 3 else other}"] = scene.text()
    wanted = {name: data for name, data in scene.files.items() if name.endswith(kind)}

    async def clauses(desktop: StagedDesktopLike) -> list[Finding]:
        found = await folder_contents(desktop, FOLDER)
        packed = found.pop("packed.tar.gz", None)
        return [
            clause("the other files of the folder", found, scene.files),
            clause("what is in packed.tar.gz", await _members(packed), wanted),
        ]

    text = f"In the terminal pack all .{kind} files of the folder, and only these, into packed.tar.gz (a gzipped tar archive)"
    return scene.build(text, f"tar -czf packed.tar.gz *.{kind}", clauses, "packed.tar.gz", "hard")


async def _members(data: bytes | None) -> dict[str, bytes] | None:
    """Plain files of an archive by name; None for what is none."""
    try:
        found = await asyncio.to_thread(isolated.call, f"{readers.__name__}:archived", data or b"")
    except NotOfItsFormat:
        return None
    return {name: text.encode("latin-1") for name, text in found.items()}


def collect(seed: int) -> Task:
    """Move the files of a kind out of four folders into one."""
    scene = Scene("shell_collect", seed)
    kind, other = scene.rng.sample(["txt", "csv", "log"], 2)
    stems = scene.rng.sample(STEMS, 8)
    for index, stem in enumerate(stems):
        scene.files[f"{PLACES[index % 4]}/{stem}.{scene.rng.choice([kind, kind, other])}"] = scene.text()
    scene.files[f"{PLACES[0]}/first.{kind}"] = scene.text()
    moved = {path.split("/")[1]: data for path, data in scene.files.items() if path.endswith(kind)}

    async def clauses(desktop: StagedDesktopLike) -> list[Finding]:
        found = {place: await folder_contents(desktop, f"{FOLDER}/{place}") for place in PLACES}
        left = {f"{place}/{name}": data for place, files in found.items() for name, data in files.items()}
        kept = {path: data for path, data in scene.files.items() if not path.endswith(kind)}
        return [
            clause("the files of the folder All", await folder_contents(desktop, f"{FOLDER}/All"), moved),
            clause("the files that are left in the other folders", left, kept),
            clause("the folders", await folder_names(desktop, FOLDER), sorted(["All", *PLACES])),
        ]

    text = f"In the terminal make a folder All and move every .{kind} file of the four folders into it"
    return scene.build(text, f"mkdir All && mv */*.{kind} All/", clauses, f"All/first.{kind}", "hard")


FAMILIES = (
    Family("shell_sort", ("xfce4-terminal",), "medium", sort_lines, "sort the lines of a file into another"),
    Family("shell_pack", ("xfce4-terminal",), "hard", pack, "pack the files of a kind"),
    Family("shell_collect", ("xfce4-terminal",), "hard", collect, "move the files of a kind out of several folders"),
)
