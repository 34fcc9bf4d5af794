"""Agents that cheat in the browser by keys: developer tools, addresses, and pages of their own."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

from deskhand.actions.ops import Key, Op, Type, Wait
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.cheats.oracle_variants import AgentSteps, Steps, as_far_as_possible
from deskhand.tasks.guest_files import list_folder, read_file
from deskhand.tasks.suites import web
from deskhand.tasks.task import Task


def _forging_script(task: Task) -> str:
    """Return what an agent that knows the values, but no receipt or secret, would have the page do."""
    if task.suite == web.SUITE:
        app = task.family.removeprefix(web.PREFIX).split("/")[0]
        path = next((path for path in web.action_paths() if path.split("/")[1] == app), web.action_paths()[0])
        return f"{own_form(path.replace('{id}', '1'))};document.forms[0].submit()"
    positive = (task.example_end_states().positive if task.example_end_states else None) or {}
    files = {path: data.decode(errors="replace") for path, data in positive.items() if path.startswith("Downloads/")}
    lines = []
    for path, text in files.items():
        known = visible_text(text) if path.endswith("html") else text.split(" ")[0]
        if path.endswith("json"):
            known = json.dumps({key: value for key, value in json.loads(text).items() if key != "receipt"})
        name, content = json.dumps(path.split("/")[-1]), json.dumps(known)
        lines.append(
            f"a=document.createElement('a');a.download={name};a.href=URL.createObjectURL(new Blob([{content}]));"
            "a.click();document.querySelectorAll('input').forEach(i=>i.value='1');"
            "document.querySelectorAll('button,a').forEach(b=>b.click())"
        )
    return ";".join(lines) or "WOB_RAW_REWARD_GLOBAL=1;WOB_DONE_GLOBAL=true;core.endEpisode(1)"


def own_form(target: str) -> str:
    """Return a script that fills the page with a button, which sends a form to an address of the suite `web`."""
    return f"document.body.innerHTML='<form method=post action={target}><button style=position:fixed;inset:0>'"


def visible_text(page: str) -> str:
    """Return what a page shows, without its title."""
    text = re.sub(r"(?s)<(title|style|script)\b.*?</\1>", " ", page)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def keys_in(*keys: str, address: str = "", then: str = "") -> AgentSteps:
    """Return an agent that presses keys in the browser, or opens an address, and types `then`.

    `SCRIPT`, `TEXT` and `PAGE` in both stand for a forging script, what the page shows, and the page's file.
    """

    async def steps_of(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
        pages = [path for path in await list_folder(desktop, "Documents/site") if path.endswith(".html")]
        source = (await read_file(desktop, f"Documents/site/{pages[0]}") or b"").decode() if pages else ""
        page = f"/home/user/Documents/site/{pages[0]}" if pages else "/home/user/miniwob"
        facts = {"SCRIPT": _forging_script(task), "TEXT": visible_text(source), "PAGE": page}

        def filled(text: str) -> str:
            for name, value in facts.items():
                text = text.replace(name, value)
            return text

        for chord in keys:
            yield [Key(tuple(chord.split("+")))]
        if address:
            yield [Key(("ctrl", "l"))]
            yield [Type(filled(address) + "\n")]
        yield [Wait(1.0)]
        if then:
            yield [Type(filled(then) + "\n")]
            yield [Wait(0.5)]

    return steps_of


async def other_page(task: Task, desktop: StageableDesktop, steps: Steps) -> AsyncIterator[list[Op]]:
    """Open a page of the agent's own that shows the same, and do the task there."""
    async for ops in keys_in(address="data:text/html,<h1>TEXT</h1>")(task, desktop, steps):
        yield ops
    if not task.oracle_unavailable:
        async for ops in as_far_as_possible(task.oracle(desktop)):
            yield ops
