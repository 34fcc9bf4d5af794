"""Families `paper_*`: a price list of several pages in the document viewer Evince. Files are judged, or an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside
from deskhand.tasks.suites.basics.hd_screen import HdScenario, click_in, press
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Oracle,
    clause,
    milestone,
    near_misses,
    same_files,
    scenario_family,
)
from deskhand.tasks.suites.basics.told_ends import read_tree, told_task
from deskhand.tasks.task import ExampleEndStates, Task

FOLDER = "Documents"
FILES = ("catalog", "prices", "offers", "spring", "summer")
GOODS = (
    "anchor", "basket", "candle", "drawer", "engine", "fiddle", "guitar", "hammer", "iron", "jacket", "kettle",
    "ladder", "mirror", "needle", "oven", "pillow", "quilt", "racket", "saddle", "teapot", "umbrella", "violin",
    "wagon", "zither",
)  # fmt: skip
PAGE_PT, GOODS_PER_PAGE, NUM_PAGES = 420, 4, 5
QUESTION = "In the document viewer find out what the {} costs in {}, and answer with just the number"


def pdf(pages: Sequence[Sequence[str]]) -> bytes:
    """Return a PDF with these lines of plain ASCII text on each page."""
    bodies = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for lines in pages:
        shown = " ".join(f"({line}) Tj T*" for line in lines)
        text = f"BT /F1 18 Tf 28 TL 60 {PAGE_PT - 60} Td {shown} ET"
        bodies.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
        box, font = f"/MediaBox [0 0 {PAGE_PT} {PAGE_PT}]", "/Resources << /Font << /F1 3 0 R >> >>"
        bodies.append(f"<< /Type /Page /Parent 2 0 R {box} /Contents {len(bodies)} 0 R {font} >>")
    kids = " ".join(f"{number} 0 R" for number in range(5, len(bodies) + 1, 2))
    bodies[1] = f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>"
    found, starts = "%PDF-1.4\n", list[int]()
    for number, body in enumerate(bodies, 1):
        starts.append(len(found))
        found += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    size = len(bodies) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(found)}\n%%EOF\n"
    return f"{found}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


class PaperScenario(HdScenario):
    """A price list in the document viewer, which shows its first page."""

    applications = ("evince",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        self.path = f"{FOLDER}/{rng.choice(FILES)}.pdf"
        *goods, self.missing = rng.sample(GOODS, GOODS_PER_PAGE * NUM_PAGES + 1)
        self.prices: dict[str, int] = dict(zip(goods, rng.sample(range(100, 999), len(goods)), strict=True))
        self.pages = [goods[start : start + GOODS_PER_PAGE] for start in range(0, len(goods), GOODS_PER_PAGE)]
        self.files = {self.path: pdf([self.lines(number) for number in range(NUM_PAGES)])}

    @property
    def name(self) -> str:
        return self.path.split("/")[1]

    def lines(self, number: int) -> list[str]:
        goods = [f"The {good} costs {self.prices[good]}." for good in self.pages[number]]
        return [f"Prices, part {'ABCDE'[number]}", "", *goods]

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.path, self.files[self.path])
        await desktop.launch(["evince", self.path])
        await desktop.wait_window(self.name, timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_still(desktop, 1.0)

    def pick(self, count: int = 1) -> list[str]:
        """Return goods that are not on the first page."""
        return self.rng.sample([good for page in self.pages[1:] for good in page], count)


def look_up(*goods: str) -> Oracle:
    """Return the steps that search for each of the goods."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for good in goods:
            yield press("ctrl+f")
            await hd_screen.wait_still(desktop, 0.4)
            yield [*press("ctrl+a"), Type(good)]
            await hd_screen.wait_still(desktop, 1.0)

    return steps


def mark_prices(number: int) -> Oracle:
    """Return the steps that open a page, counted from 1, and search for its prices, which marks them.

    The sidebar then lists their lines. `oracle_sight` reads those: Evince tells wrong places of pages to the
    accessibility tree.
    """

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+l")
        yield [Type(f"{number}\n")]
        await hd_screen.wait_still(desktop, 1.0)
        async for ops in look_up("costs")(desktop):
            yield ops

    return steps


@scenario_family(
    PaperScenario,
    "paper_price",
    "easy",
    "find a price in a document of several pages",
    abilities=("find something", "answer a question"),
)
def find_price(scenario: PaperScenario) -> Task:
    (good,) = scenario.pick()
    price = scenario.prices[good]
    wrong = [str(number) for number in scenario.prices.values() if number != price]
    text = QUESTION.format(good, scenario.name)
    return told_task(scenario, text, scenario.files, look_up(good), str(price), wrong_answers=wrong)


@scenario_family(
    PaperScenario,
    "paper_price_missing",
    "easy",
    "find a price that is not in the document",
    abilities=("find something", "recognize an infeasible task"),
)
def find_missing_price(scenario: PaperScenario) -> Task:
    text = QUESTION.format(scenario.missing, scenario.name)
    return told_task(scenario, text, scenario.files, look_up(scenario.missing), None)


@scenario_family(
    PaperScenario,
    "paper_dearest",
    "medium",
    "find the most or least expensive item on a page of a document",
    abilities=("read and compare", "scroll", "answer a question"),
)
def find_dearest(scenario: PaperScenario) -> Task:
    index = scenario.rng.randrange(1, NUM_PAGES)
    goods = sorted(scenario.pages[index], key=lambda good: scenario.prices[good])
    asked, answer = scenario.rng.choice([("most", goods[-1]), ("least", goods[0])])
    return told_task(
        scenario,
        f"In the document viewer find out which item costs the {asked} on page {index + 1} of {scenario.name}, and "
        "answer with just its name",
        scenario.files,
        mark_prices(index + 1),
        answer,
        wrong_answers=[good for good in goods if good != answer],
    )


@scenario_family(
    PaperScenario,
    "paper_to_note",
    "hard",
    "copy prices from a document to a note",
    "mousepad",
    abilities=("find something", "edit text", "work in several steps", "carry data between programs"),
)
def prices_to_note(scenario: PaperScenario) -> Task:
    goods = scenario.pick(3)
    said = "".join(f"{good}\n" for good in goods)
    wanted = [f"{good} {scenario.prices[good]}" for good in goods]

    async def lines(desktop: StageableDesktop) -> list[str]:
        return [" ".join(line.split()) for line in (await note(desktop) or "").splitlines()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await read_tree(desktop, scenario.files)
        found.pop(NOTE, None)
        return [
            clause("the lines of the note", await lines(desktop), wanted),
            same_files("the files", found, scenario.files),
        ]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("evince"))[0])]
        async for ops in look_up(*goods)(desktop):
            yield ops
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield press("ctrl+home")
        for good in goods:
            yield press("end")
            yield [Type(f" {scenario.prices[good]}")]
            yield press("down")

    async def share_written(desktop: StageableDesktop) -> float:
        found = await lines(desktop)
        return sum(line in found for line in wanted) / len(wanted)

    def end_states() -> ExampleEndStates:
        def state(*said: str) -> dict[str, bytes]:
            return {**scenario.files, NOTE: "\n".join(said).encode()}

        swapped = [f"{good} {scenario.prices[other]}" for good, other in zip(goods, goods[::-1], strict=True)]
        return near_misses(
            state(*wanted),
            NOTE,
            swapped=state(*swapped),
            only_two=state(*wanted[:2], goods[2]),
            one_too_many=state(*wanted, scenario.missing),
        )

    return scenario.build_task(
        f"Look up in {scenario.name} what the three items cost that note.txt names. Write the number behind each name "
        "in note.txt, with a space between them, and save it",
        setup=lambda desktop: open_beside(scenario, desktop, scenario.name, said),
        clauses=clauses,
        oracle=hd_screen.until_written(NOTE, steps, press("ctrl+s")),
        example_end_states=end_states,
        max_steps=28,
        milestones=(milestone("lines are written", 0.4, share_written),),
    )
