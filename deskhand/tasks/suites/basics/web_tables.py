"""Family `page_look_up`: a number far down in a long table on a page (`web_pages`)."""

from __future__ import annotations

from deskhand.actions.ops import Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.hd_screen import press
from deskhand.tasks.suites.basics.scenario import milestone, near_misses, same_files, scenario_family
from deskhand.tasks.suites.basics.web_pages import GOODS, TOWNS, WebPageScenario, downloads
from deskhand.tasks.task import ExampleEndStates, Task


@scenario_family(
    WebPageScenario,
    "page_look_up",
    "hard",
    "find a number in a long table and send it",
    abilities=("browse pages", "find something", "scroll", "fill in a form"),
)
def look_up(scenario: WebPageScenario) -> Task:
    rng = scenario.rng
    keys = [(good, town) for good in GOODS for town in TOWNS]
    rng.shuffle(keys)
    prices = dict(zip(keys, rng.sample(range(100, 999), len(keys)), strict=True))
    good, town = rng.choice(keys[30:])
    lines = "".join(f"<tr><td>{one}<td>{where}<td>{price}</tr>" for (one, where), price in prices.items())
    scenario.page(
        "prices",
        "Prices",
        "<label>Price <input id=price autocomplete=off></label><button id=send>"
        f"Send</button><table><tr><th>Good<th>Town<th>Price</tr>{lines}</table>",
        "give('send', 'answer.txt', () => `${entered.price} ${receipt(entered.price)}`);",
    )
    price = str(prices[good, town])

    def with_receipt(answer: str) -> str:
        return f"{answer} {scenario.receipt(answer)}"

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [same_files("the files in Downloads", await downloads(desktop), {"answer.txt": with_receipt(price)})]

    async def sent(desktop: StageableDesktop) -> str | None:
        text = (await downloads(desktop)).get("answer.txt")
        return None if text is None else text.partition(" ")[0]

    async def is_sent(desktop: StageableDesktop) -> bool:
        return await sent(desktop) is not None

    async def is_related(desktop: StageableDesktop) -> bool:
        return await sent(desktop) in {
            str(cost) for (one, where), cost in prices.items() if one == good or where == town
        }

    def end_states() -> ExampleEndStates:
        path = "Downloads/answer.txt"
        other = str(next(cost for (one, where), cost in prices.items() if one == good and where != town))
        return near_misses(
            {path: with_receipt(price).encode()},
            path,
            of_another_town={path: with_receipt(other).encode()},
            with_more={path: with_receipt(f"{price}0").encode()},
            not_from_the_page={path: price.encode()},
        )

    goods = [one for one, _ in keys]
    earlier = goods[: keys.index((good, town))].count(good)
    steps = [
        press("ctrl+f"),
        [Type(good)],
        *[press("enter")] * earlier,  # the search shows one row after the other
        press("esc"),
        press("shift+tab"),
        press("shift+tab"),
        [Type(price)],
        press("tab", "enter"),
    ]
    milestones = (
        milestone("something was sent", 0.1, is_sent),
        milestone("a price of the good or the town was sent", 0.1, is_related),
    )
    text = f"Find in the table what a {good} costs in {town}, type the number into the field Price and send it"
    return scenario.page_task(
        text,
        clauses,
        steps,
        waits_for="Downloads/answer.txt",
        end_states=end_states,
        milestones=milestones,
    )
