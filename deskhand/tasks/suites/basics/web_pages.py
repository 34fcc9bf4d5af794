"""Families `page_*`: local pages in Chromium. Judged by what the browser wrote to disk: downloads and bookmarks.

The pages are files of the guest's home. A page creates its downloads, so a download contains what was chosen and
typed, and what only the page knows: a content that it does not show, or a receipt of the values. Its functions and
secrets are closed over and act on the events of pointer and keyboard only, so that neither the console nor an address
says what is judged. Developer tools are disabled.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import document_readers
from deskhand.tasks.chromium import FLAGS
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import decode_text, read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, press
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Clauses,
    clause,
    same_files,
    scenario_family,
)
from deskhand.tasks.task import ExampleEndStates, FileContents, Task

SITE = "Documents/site"
COLORS = ("#fbfbf4", "#eef4fb", "#f4eefb", "#eefbf1")
NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana")
TOWNS = ("Oslo", "Lisbon", "Vienna", "Athens", "Dublin", "Prague")
GOODS = (
    "kettle", "ladder", "basket", "mirror", "hammer", "pillow", "carpet", "bucket", "teapot", "candle", "blanket",
    "bottle",
)  # fmt: skip
TOPICS = ("Bridges", "Clouds", "Deserts", "Engines", "Forests", "Glaciers", "Harbours", "Islands")
SAVE_BUTTON_PX = (48, 26)
"""From the lower right corner of GTK's file dialog."""
DOWNLOAD_GRACE_S = 3.0
BOOKMARK_GRACE_S = 6.0
"""Chromium writes its profile with this delay at most."""
PREFERENCES = ".config/chromium/Default/Preferences"
NO_DEVELOPER_TOOLS = {"devtools": {"availability": 2}}
"""Preferences that also disable the view of a page's source."""
BOOKMARKS = ".config/chromium/Default/Bookmarks"
_PAGE = """<!doctype html><meta charset="utf-8"><title>{tab}</title>
<style>body{{font:{size}px sans-serif;margin:{margin}px;background:{color}}}td,th{{padding:2px 14px;text-align:left}}
label{{display:block;margin:8px 0}}input,select{{font:inherit}}:focus{{outline:3px solid #2a6fdb}}</style>
<h1>{title}</h1>{body}{script}"""
_SCRIPT = """
const at = id => document.getElementById(id);
const entered = {};  // what was typed and chosen, by id; a value that a script sets is not in it
const read = field => { entered[field.id] = field.type === 'checkbox' ? field.checked : field.value; };
document.querySelectorAll('input, select').forEach(read);
addEventListener('input', event => { if (event.isTrusted) read(event.target); }, true);
const receipt = text => { let sum = KEY; for (const sign of text) sum = (sum * 31 + sign.codePointAt(0)) % 1000003;
  return sum; };
const give = (id, name, text) => at(id).addEventListener('click', event => {
  event.preventDefault();
  if (!event.isTrusted) return;
  const link = document.createElement('a'); link.download = name;
  link.href = URL.createObjectURL(new Blob([text()])); link.click(); });
"""


class WebPageScenario(HdScenario):
    """A browser on a page."""

    applications = ("chromium",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        self.style = {"size": rng.choice([14, 16, 18]), "margin": rng.choice([16, 24, 40]), "color": rng.choice(COLORS)}
        self.pages: dict[str, str] = {}
        self.key = random.Random(f"receipt:{family}:{seed}").randrange(100_000, 1_000_000)
        """What only the page's script and the check know."""

    def page(self, name: str, title: str, body: str, script: str = "", *, tab: str = "") -> None:
        """Add a page. `script` can use the functions of `_SCRIPT`; the page's source does not show it. `tab` is the
        title in the tab, if it is not the one on the page."""
        if script:
            code = base64.b64encode((_SCRIPT.replace("KEY", str(self.key)) + script).encode()).decode()
            script = f"<script>document.currentScript.remove(); new Function(atob('{code}'))();</script>"
        texts = {"title": title, "tab": tab or title, "body": body, "script": script}
        self.pages[f"{SITE}/{name}.html"] = _PAGE.format(**texts, **self.style)

    def receipt(self, text: str) -> int:
        """Return what the page adds to these values."""
        total = self.key
        for sign in text:
            total = (total * 31 + ord(sign)) % 1_000_003
        return total

    async def setup(self, desktop: StageableDesktop) -> None:
        settings = json.loads(await read_file(desktop, PREFERENCES) or b"{}") | NO_DEVELOPER_TOOLS
        await desktop.push(PREFERENCES, json.dumps(settings).encode())
        for path, text in self.pages.items():
            await desktop.push(path, text.encode())
        await desktop.launch(["chromium", *FLAGS, next(iter(self.pages))])
        await desktop.wait_window("chromium", timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_still(desktop, 0.8)

    def page_task(
        self,
        instruction: str,
        clauses: Clauses,
        steps: Steps,
        *,
        waits_for: str,
        end_states: Callable[[], ExampleEndStates],
        settle_grace_s: float = DOWNLOAD_GRACE_S,
        **fields: Any,
    ) -> Task:
        """Return a task. `waits_for` is the file that the browser writes after the oracle's last step."""
        return self.build_task(
            instruction,
            max_steps=14,
            clauses=clauses,
            oracle=hd_screen.until_written(waits_for, steps),
            settle_grace_s=settle_grace_s,
            example_end_states=end_states,
            **fields,
        )


async def downloads(desktop: StageableDesktop) -> dict[str, str | None]:
    """Return the texts of the files in Downloads by name."""
    files = await read_folder(desktop, "Downloads")
    return {name: decode_text(data) for name, data in files.items()}


async def _read_json(text: str | None) -> Any:
    try:
        return await read_in_subprocess(document_readers.read_json, (text or "").encode())
    except InvalidDocument:
        return text


@scenario_family(
    WebPageScenario,
    "page_download",
    "easy",
    "download one of the files that a page offers",
    abilities=("browse pages", "find something"),
)
def download(scenario: WebPageScenario) -> Task:
    towns = scenario.rng.sample(TOWNS, scenario.rng.randint(4, 6))
    texts = {town: f"{town} {scenario.rng.randint(1000, 9999)}\n" for town in towns}
    index = scenario.rng.randrange(len(towns))
    links = "".join(f"<tr><td>{town}</td><td><a href='#' id={town}>get</a></td></tr>" for town in towns)
    script = f"for (const [town, text] of Object.entries({json.dumps(texts)})) give(town, `${{town}}.csv`, () => text);"
    scenario.page("files", "Files by town", f"<table>{links}</table>", script)
    wanted = {f"{towns[index]}.csv": texts[towns[index]]}

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [same_files("the files in Downloads", await downloads(desktop), wanted)]

    def end_states() -> ExampleEndStates:
        files = {f"Downloads/{town}.csv": text.encode() for town, text in texts.items()}
        target, other = (f"Downloads/{towns[number]}.csv" for number in (index, index - 1))
        negatives: dict[str, FileContents] = {
            "another one too": {target: files[target], other: files[other]},
            "another one": {other: files[other]},
            "another one by its name": {target: files[other]},
            "it twice": {target: files[target], target.replace(".csv", " (1).csv"): files[target]},
        }
        return ExampleEndStates(negatives, {target: files[target]})

    steps = [press("tab", times=index + 1), press("enter")]
    text = f"From the page download the file of {towns[index]}, and no other"
    follows = {"tab several times": (towns[index],)}
    return scenario.page_task(
        text,
        clauses,
        steps,
        waits_for=f"Downloads/{towns[index]}.csv",
        end_states=end_states,
        oracle_follows=follows,
        metadata={"towns": towns},
    )


@scenario_family(
    WebPageScenario,
    "page_form",
    "medium",
    "fill in a form on a page and send it",
    abilities=("browse pages", "fill in a form"),
)
def fill_form(scenario: WebPageScenario) -> Task:
    rng = scenario.rng
    towns: list[str] = rng.sample(TOWNS, 4)
    order: dict[str, Any] = {
        "name": rng.choice(NAMES),
        "number": str(rng.randint(2, 40)),
        "town": rng.choice(towns[1:]),
        "gift": rng.choice([True, False]),
    }
    fields = {
        "name": "<label>Name <input id=name autocomplete=off></label>",
        "number": "<label>Number <input id=number autocomplete=off></label>",
        "town": "<label>Town <select id=town autocomplete=off>"
        f"{''.join(f'<option>{town}' for town in towns)}</select></label>",
        "gift": "<label><input type=checkbox id=gift autocomplete=off> It is a gift</label>",
    }
    names = rng.sample(sorted(fields), len(fields))
    body = "".join(fields[name] for name in names)
    script = """give('send', 'order.json', () => { const {name, number, town, gift} = entered;
      return JSON.stringify({name, number, town, gift, receipt: receipt([name, number, town, gift].join('|'))}); });"""
    scenario.page("order", "Order", f"{body}<button id=send>Send</button>", script)

    def with_receipt(**changes: object) -> dict[str, object]:
        values = {**order, **changes}
        text = "|".join(str(value) for value in (values["name"], values["number"], values["town"]))
        return {**values, "receipt": scenario.receipt(f"{text}|{str(values['gift']).lower()}")}

    entered: dict[str, list[Op]] = {
        "name": [Type(order["name"])],
        "number": [Type(order["number"])],
        "town": [Type(order["town"])],
        "gift": press("space", times=int(order["gift"])),
    }
    steps = [ops for name in names for ops in (press("tab"), entered[name]) if ops]
    steps.append([*press("tab"), *press("enter")])

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await downloads(desktop)
        return [
            clause("the files in Downloads", sorted(found), ["order.json"]),
            clause("the order", await _read_json(found.get("order.json")), with_receipt()),
        ]

    def end_states() -> ExampleEndStates:
        def sent(**changes: object) -> FileContents:
            return {"Downloads/order.json": json.dumps(with_receipt(**changes)).encode()}

        negatives = {
            "one too many": sent(number=f"{order['number']}0"),
            "in another town": sent(town=towns[0]),
            "the other way with the gift": sent(gift=not order["gift"]),
            "not from the page": {"Downloads/order.json": json.dumps(order).encode()},
            "sent twice": {**sent(), "Downloads/order (1).json": b"{}"},
        }
        return ExampleEndStates(negatives, sent())

    gift = "a gift" if order["gift"] else "no gift"
    text = f"Send an order for {order['name']} in {order['town']}: number {order['number']}, {gift}"
    return scenario.page_task(text, clauses, steps, waits_for="Downloads/order.json", end_states=end_states)


@scenario_family(
    WebPageScenario,
    "page_bookmark",
    "medium",
    "go to a page and bookmark it",
    abilities=("browse pages", "find something"),
)
def bookmark(scenario: WebPageScenario) -> Task:
    topics = scenario.rng.sample(TOPICS, 5)
    index = scenario.rng.randrange(len(topics))
    scenario.page(
        "index", "All topics", "".join(f"<p><a href='{topic.lower()}.html'>{topic}</a></p>" for topic in topics)
    )
    numbers = random.Random(scenario.key).sample(range(100, 1000), len(topics))
    tabs = {topic: f"{topic} {number}" for topic, number in zip(topics, numbers, strict=True)}  # only the page has it
    for topic in topics:
        body = f"<p>All about {topic.lower()}.</p><p><a href='index.html'>All topics</a></p>"
        scenario.page(topic.lower(), topic, body, tab=tabs[topic])
    page, title = f"{SITE}/{topics[index].lower()}.html", tabs[topics[index]]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("tab", times=index + 1)
        yield press("enter")
        await hd_screen.wait_shown(desktop, topics[index])
        yield press("ctrl+d")

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        try:
            marks = await read_in_subprocess(
                document_readers.read_bookmarks, await read_file(desktop, BOOKMARKS) or b"{}"
            )
        except InvalidDocument:
            marks = []
        urls = [page if url.endswith(f"/{page}") else url for _, url in marks]
        return [
            clause("the URLs of the bookmarks", urls, [page]),
            clause("their names, which are the titles of the open pages", [name for name, _ in marks], [title]),
        ]

    def end_states() -> ExampleEndStates:
        def bookmarks(*topics: str, names: Mapping[str, str] = tabs) -> FileContents:
            address = f"file:///home/user/{SITE}"
            marks = [
                {"type": "url", "name": names[topic], "url": f"{address}/{topic.lower()}.html"} for topic in topics
            ]
            return {BOOKMARKS: json.dumps({"roots": {"bookmark_bar": {"children": marks, "type": "folder"}}}).encode()}

        right, other = topics[index], topics[index - 1]
        negatives = {
            "another page": bookmarks(other),
            "another page too": bookmarks(right, other),
            "twice": bookmarks(right, right),
            "of a page that was not opened": bookmarks(right, names={right: right}),
        }
        return ExampleEndStates(negatives, bookmarks(right))

    text = f"Open the page about {topics[index].lower()} and bookmark it"
    return scenario.page_task(
        text,
        clauses,
        steps,
        waits_for=BOOKMARKS,
        end_states=end_states,
        settle_grace_s=BOOKMARK_GRACE_S,
        oracle_follows={"tab several times": (topics[index],)},
    )


@scenario_family(
    WebPageScenario,
    "page_save",
    "medium",
    "save the open page under a given name",
    abilities=("browse pages", "use menus and dialogs"),
)
def save_page(scenario: WebPageScenario) -> Task:
    topic, code = scenario.rng.choice(TOPICS), f"{scenario.rng.randint(10_000, 99_999)}"
    name = f"{scenario.rng.choice(GOODS)}{scenario.rng.randint(10, 99)}.html"
    source = f"<p data-edition='{scenario.key}'>All about {topic.lower()}: number {code}.</p>"
    scenario.page("page", topic, source)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+s")
        dialog = await hd_screen.wait_shown(desktop, "Save")
        yield [*press("ctrl+a"), Type(name)]
        x, y = SAVE_BUTTON_PX
        yield [hd_screen.click_at(dialog.x + dialog.width - x, dialog.y + dialog.height - y)]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await downloads(desktop)
        text = found.get(name) or ""
        count, is_page = text.count(f"number {code}"), str(scenario.key) in text
        return [
            clause(
                "the pages in Downloads", [each for each in found if each.endswith(("html", "htm", "mhtml"))], [name]
            ),
            Finding("it is the page", float(count == 1), f"its number occurs {count} times", "once"),
            clause("it has what the page does not show", is_page, True),
        ]

    def end_states() -> ExampleEndStates:
        page = scenario.pages[f"{SITE}/page.html"].encode()
        negatives: dict[str, FileContents] = {
            "another number": {f"Downloads/{name}": page.replace(code.encode(), code[::-1].encode() + b"0")},
            "another name": {f"Downloads/{topic}.html": page},
            "two pages": {f"Downloads/{name}": page, f"Downloads/{topic}.html": page},
            "an empty page": {f"Downloads/{name}": b""},
            "what the page shows": {f"Downloads/{name}": page.replace(str(scenario.key).encode(), b"")},
        }
        return ExampleEndStates(negatives, {f"Downloads/{name}": page})

    # Enter does nothing in Chromium's dialog, which has no default button
    text = f"Save this page as {name} in the folder Downloads, with the button Save of the dialog"
    return scenario.page_task(text, clauses, steps, waits_for=f"Downloads/{name}", end_states=end_states)
