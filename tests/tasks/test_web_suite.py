"""The suite `web`: its families, the gate of its sites, and what guests can do to them.

`DESKHAND_TEST_FULL=1` plays every family.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urljoin

import httpx2
import pytest
from desktops import ISOLATIONS, desktop_for

from deskhand.actions.ops import Answer, Done, Fail
from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.abilities import ABILITIES
from deskhand.tasks.cheats import site_requests
from deskhand.tasks.end_state import FORMAT, EndState, rescore_states
from deskhand.tasks.family_checks import check_family, check_family_live
from deskhand.tasks.judge import ending, is_accepted, judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites import basics, family_registry, family_stats
from deskhand.tasks.suites.web import FAMILIES, sites
from deskhand.tasks.suites.web.scenario import VARIANTS, changed, same_state
from deskhand.tasks.suites.web.server import APPS, Site
from deskhand.tasks.suites.web.web_app import TOKEN
from deskhand.tasks.task import Task, seed_for

FULL = os.environ.get("DESKHAND_TEST_FULL") == "1"
SEEDS = [seed_for(split, index) for split in ("train", "test") for index in range(200 if FULL else 6)]
GUEST_PROGRAM = Path(site_requests.__file__).read_text(encoding="utf-8")
KINDS = ("web/shop/order", "web/issues/count", "web/files/share_missing")
"""One family that ends in a state, one in an answer, one infeasible."""
everywhere = pytest.mark.parametrize("name", FAMILIES)
needs_sites = pytest.mark.skipif(
    bool(missing(["chromium"])) or "namespaces" not in ISOLATIONS, reason="needs Chromium and namespaces"
)


def is_same(read: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(finding.value == 1.0 for finding in same_state(read, expected))


@everywhere
def test_tasks_are_pure_and_well_formed(name: str) -> None:
    assert check_family(FAMILIES[name], SEEDS) == []


@everywhere
def test_only_the_asked_change_is_right(name: str) -> None:
    for seed in SEEDS:
        scenario, goal = VARIANTS[name](seed)
        assert [goal.right is not None, bool(goal.answer), goal.infeasible].count(True) == 1
        if goal.right is None:
            continue
        right = changed(scenario.state, goal.right)
        assert is_same(json.loads(json.dumps(right)), right)
        assert not is_same(scenario.state, right)
        assert len(goal.wrong) >= 3
        for mistake, change in goal.wrong.items():
            assert not is_same(changed(scenario.state, change), right), (seed, mistake)
        for app in right:
            other = changed(right, lambda state, app=app: next(filter(None, state[app].values())).pop())
            assert not is_same(other, right), "what all applications have must stay"


def test_punctuation_at_the_end_of_a_text_is_no_mistake() -> None:
    scenario, goal = VARIANTS["web/mail/reply"](3)
    right = changed(scenario.state, goal.right)
    for written, is_right in (("TEXT.", True), (" TEXT! ", True), ("TEXT, TEXT", False), ("Dear all, TEXT", False)):
        state = json.loads(json.dumps(right))
        message = state["mail"]["messages"][-1]
        message["text"] = written.replace("TEXT", message["text"])
        assert is_same(state, right) is is_right, written


@everywhere
def test_only_the_right_answer_is_accepted(name: str) -> None:
    for seed in SEEDS:
        _, goal = VARIANTS[name](seed)
        if goal.answer:
            accepted = FAMILIES[name].generate(seed).accepted_answers
            assert is_accepted(f" {goal.answer.upper()}. ", accepted)
            assert len(goal.wrong_answers) >= 3
            wrong = [None, "", goal.instruction, f"{goal.answer} {goal.answer}", *goal.wrong_answers]
            assert not any(is_accepted(text, accepted) for text in wrong)


def test_an_infeasible_family_reads_like_a_feasible_one() -> None:
    """A policy must not learn from the words alone that it cannot be done."""

    def words(name: str) -> set[str]:
        return {" ".join(FAMILIES[name].generate(seed).instruction.split()[:3]) for seed in SEEDS}

    infeasible = {name for name in FAMILIES if VARIANTS[name](0)[1].infeasible}
    assert len(infeasible) >= 12
    feasible = set().union(*(words(name) for name in FAMILIES if name not in infeasible))
    for name in infeasible:
        assert words(name) <= feasible, name


@needs_sites
@pytest.mark.parametrize("name", FAMILIES if FULL else KINDS)
async def test_only_the_oracle_solves_the_task(name: str) -> None:
    seeds = [seed_for("train", 0), seed_for("test", 0)] if FULL else [seed_for("test", 0)]
    assert await check_family_live(FAMILIES[name], seeds, desktop_for, max_concurrent=2) == []


async def test_how_an_agent_ends_is_judged(tmp_path: Path) -> None:
    """On saved end states, so that rescoring judges the same."""
    scenario, goal = VARIANTS["web/mail/who"](3)
    task, impossible = FAMILIES["web/mail/who"].generate(3), FAMILIES["web/mail/reply_missing"].generate(3)

    def state(state: dict[str, Any], **end: Any) -> EndState:
        record = {"format": FORMAT, "setup_facts": {sites.STATE: state}, "outcome": {"value": 0.0}, **end}
        return EndState(tmp_path / "end.json", record)

    changed_state = changed(scenario.state, lambda state: state["mail"]["messages"].pop())
    unchanged = VARIANTS["web/mail/reply_missing"](3)[0].state
    emptied = changed(unchanged, lambda state: state["shop"]["goods"].pop())
    cases = [
        (task, state(scenario.state, answer=goal.answer), 1.0),
        (task, state(scenario.state, answer=goal.wrong_answers[0]), 0.0),
        (task, state(scenario.state), 0.0),
        (task, state(changed_state, answer=goal.answer), 0.0),
        (impossible, state(unchanged, declared_infeasible=True), 1.0),
        (impossible, state(unchanged), 0.0),
        (impossible, state(emptied, declared_infeasible=True), 0.0),
    ]
    for each, saved, value in cases:
        [rescored] = [found async for found in rescore_states([saved], lambda _, each=each: each)]
        assert isinstance(rescored.outcome, Scored)
        assert rescored.outcome.value == value
    assert ending([Done()]) == {"declared_infeasible": False, "answer": None}
    assert ending([Answer("x")])["answer"] == "x"
    assert ending([Fail()])["declared_infeasible"]


def form_of(of: Site, path: str, fields: dict[str, str]) -> dict[str, str]:
    """What a page of the site sends to a path."""
    return {TOKEN: of.form_token(path), **fields}


def token_in(page: str) -> str:
    """The token of a page's only form."""
    (token,) = re.findall(f"name={TOKEN} value=([0-9a-f]+)", page)
    return token


USER = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}


def site() -> Site:
    return Site(
        VARIANTS["web/mail/reply"](0)[0].state, {"size": 15, "color": "#fff", "accent": "#000"}, "key", "/mail/write"
    )


def client(of: Site) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(of), base_url="http://127.0.0.1:8080")


async def test_a_site_is_open_to_the_browser_that_entered_it_and_to_nobody_else() -> None:
    of = site()
    before = json.dumps(of.state)
    async with client(of) as browser, client(of) as stranger:
        assert (await browser.get("/mail/folder/Inbox")).status_code == 403
        assert (await browser.get("/enter/other")).status_code == 403
        assert (await browser.get("/enter/key")).headers["location"] == "/mail/write"
        assert (await browser.get("/mail/folder/Inbox")).status_code == 200
        assert (await stranger.get("/enter/key")).status_code == 403, "the address works once"
        form = form_of(of, "/mail/send", {"to": of.state["mail"]["people"][0], "subject": "x", "text": ""})
        for sender, headers in ((stranger, USER), (browser, {}), (browser, USER | {"sec-fetch-dest": "empty"})):
            assert (await sender.post("/mail/send", data=form, headers=headers)).status_code == 403
        large = {**form, "text": "x" * 100_000}
        assert (await browser.post("/mail/send", data=large, headers=USER)).status_code == 403
        assert json.dumps(of.state) == before
        assert of.num_refused == 7
        assert (await browser.post("/mail/send", data=form, headers=USER)).status_code == 303
        assert of.state["mail"]["messages"][-1]["folder"] == "Sent"


async def test_a_form_is_accepted_only_as_a_page_had_it_for_its_path() -> None:
    of, other = site(), site()
    before = json.dumps(of.state)
    async with client(of) as browser:
        page = await browser.get("/enter/key", follow_redirects=True)
        assert all(
            part in page.headers["content-security-policy"] for part in ("script-src 'none'", "form-action 'self'")
        )
        token = token_in(page.text)
        assert token == of.form_token("/mail/send")
        fields = {"to": of.state["mail"]["people"][0], "subject": "x", "text": ""}
        for path, given in (
            ("/mail/move/1/Trash", token),
            ("/mail/send", ""),
            ("/mail/send", other.form_token("/mail/send")),
            ("/mail//send", token),
        ):
            reply = await browser.post(path, data={**fields, TOKEN: given}, headers=USER)
            assert reply.status_code in (403, 404), path
            assert "content-security-policy" in reply.headers
        assert json.dumps(of.state) == before
        for _ in range(2):  # as with the back button
            assert (await browser.post("/mail/send", data={**fields, TOKEN: token}, headers=USER)).status_code == 303
        of.state["files"]["files"][0]["shared"]["O'Brien & Ünal"] = "may read"
        page = await browser.get("/files/file/1")
        path = "/files/unshare/1/O'Brien & Ünal"
        assert of.form_token(path) in page.text, "as the path arrives"
        assert (await browser.post(path, data={TOKEN: of.form_token(path)}, headers=USER)).status_code == 303


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/mail/send", {"to": "Nobody", "subject": "x", "text": ""}),
        ("/mail/send", {"to": "", "subject": "x", "text": ""}),
        ("/mail/move/1/Elsewhere", {}),
        ("/mail/move/99/Trash", {}),
        ("/shop/add/1", {"number": "10"}),
        ("/shop/add/1", {"number": "x"}),
        ("/shop/order", {"name": "", "town": "Oslo", "delivery": "Express"}),
        ("/calendar/add", {"title": "x", "day": "Monday", "time": "25:00", "place": ""}),
        ("/calendar/add", {"title": "x", "day": "Sunday", "time": "12:00", "place": ""}),
        ("/issues/change/1", {"assignee": "Nobody"}),
        ("/booking/book/1", {"name": "x", "email": "x", "travelers": "1", "seat": "Any", "terms": "on"}),
        ("/booking/book/1", {"name": "x", "email": "x@y.de", "travelers": "7", "seat": "Any", "terms": "on"}),
        ("/booking/book/1", {"name": "x", "email": "x@y.de", "travelers": "1", "seat": "Any"}),
        ("/files/share/1", {"person": "Nobody", "right": "may edit"}),
        ("/files/rename/1", {"name": " "}),
        ("/files/rename/1", {"name": "x" * 3000}),
    ],
)
async def test_a_form_that_is_refused_changes_nothing(path: str, form: dict[str, str]) -> None:
    of = site()
    before = json.dumps(of.state)
    async with client(of) as browser:
        await browser.get("/enter/key")
        reply = await browser.post(path, data=form_of(of, path, form), headers=USER)
    assert "class=error" in reply.text
    assert json.dumps(of.state) == before


async def test_what_guests_store_is_bounded_and_escaped() -> None:
    of = site()
    async with client(of) as browser:
        await browser.get("/enter/key")
        fields = {"to": of.state["mail"]["people"][0], "subject": "<script>x</script>", "text": ""}
        form = form_of(of, "/mail/send", fields)
        replies = [await browser.post("/mail/send", data=form, headers=USER) for _ in range(400)]
        assert "no space left" in replies[-1].text
        assert len(of.state["mail"]["messages"]) == 300
        assert "<script>" not in (await browser.get("/mail/folder/Sent")).text


async def test_every_page_of_every_application_can_be_shown() -> None:
    of = site()
    pages = {"/mail/folder/Inbox", "/shop/cart", "/calendar/week", "/issues/list/open", "/booking/search"}
    seen, left = set[str](), [*pages, "/files/folder/Plans", "/booking/trains?town=Oslo", "/booking/bookings"]
    async with client(of) as browser:
        await browser.get("/enter/key")
        while left:
            path = left.pop()
            text = (await browser.get(path)).text
            assert "There is no such page" not in text, path
            seen.add(path)
            found = {urljoin(f"/{path.split('/')[1]}/", part.split("'")[0]) for part in text.split("href='")[1:]}
            left += found - seen - set(left)
    assert {path.split("/")[1] for path in seen} == set(APPS)
    assert len(seen) > 60


async def worth(task: Task, desktop: LocalDesktop) -> float | None:
    outcome = await judge(task, desktop)
    return outcome.value if isinstance(outcome, Scored) else None


@needs_sites
async def test_a_guest_that_posts_the_goal_state_is_refused() -> None:
    """By a program of its own, with the very form that does the task."""
    name, seed = "web/mail/reply", seed_for("test", 1)
    (scenario, goal), task = VARIANTS[name](seed), FAMILIES[name].generate(seed)
    assert goal.right is not None
    sent = changed(scenario.state, goal.right)["mail"]["messages"][-1]
    forms = [["/mail/send", {key: sent[key] for key in ("to", "subject", "text")}]]
    async with desktop_for(task) as desktop, desktop_for(task) as other:
        await task.setup(desktop)
        await sites.open_site(other, {"mail": {"messages": []}}, scenario.style, "/")
        tried = await desktop.run(["python3", "-c", GUEST_PROGRAM, json.dumps(forms)])
        assert (tried.returncode, tried.stdout) == (0, b""), tried
        assert await sites.num_refused(desktop) > 20
        assert await sites.read_state(desktop) == scenario.state
        assert await worth(task, desktop) == 0.0
        await sites.write_state(desktop, changed(scenario.state, goal.right))
        assert await worth(task, desktop) == 1.0
        assert await sites.read_state(other) == {"mail": {"messages": []}}, "each desktop has a state of its own"
        await other.reset(DesktopSpec(width=320, height=240))
        with pytest.raises(InfrastructureError):
            await sites.read_state(other)


async def test_a_desktop_without_a_guest_network_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="needs a local desktop"):
        await sites.open_site(cast(Any, object()), {}, {}, "/")


def test_families_are_found_by_their_prefix() -> None:
    task = family_registry.make_task("web/mail/reply", 0)
    assert (task.id, task.suite) == ("web/mail/reply/0", "web")
    with pytest.raises(ConfigError, match=r"solitaire.*web/mail/reply"):
        family_registry.make_task("web/solitaire", 0)


def test_the_documentation_lists_every_family_and_counts_every_ability() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "tasks.md").read_text(encoding="utf-8")
    section = text.split("## The suite `web`")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{family.name}` | {family.difficulty} | {family_stats.end_of(family.generate(0))} | "
        f"{family_stats.step_limit_of(family)} | {', '.join(family.abilities[1:])} | {family.summary} |"
        for family in FAMILIES.values()
    ]
    counts = [
        {value: count for name, value, count in family_stats.count_families(suite.values()) if name == "ability"}
        for suite in (basics.FAMILIES, FAMILIES)
    ]
    section = text.split("## Abilities")[1].split("\n## ")[0]
    wanted = [f"| {name} | {counts[0].get(name, 0)} | {counts[1].get(name, 0)} |" for name in ABILITIES]
    assert [line for line in section.splitlines() if line.startswith("| ")][1:] == wanted


def test_every_family_names_abilities_of_the_fixed_list_and_every_ability_is_used() -> None:
    families = [*basics.FAMILIES.values(), *FAMILIES.values()]
    assert all(family.abilities and set(family.abilities) <= set(ABILITIES) for family in families)
    assert {ability for family in families for ability in family.abilities} == set(ABILITIES)
    ends = {"answer": "answer a question", "infeasible": "recognize an infeasible task"}
    for family in families:
        end = family_stats.end_of(family.generate(0))
        assert {name for name in ends.values() if name in family.abilities} == ({ends[end]} if end in ends else set())


class Loopback:
    """Has its network in common with the test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.close: Callable[[], None] = lambda: None

    async def listen_inside(self, port: int, on_close: Callable[[], None]) -> socket.socket:
        self.close = on_close
        return self.listener


async def opened(state: dict[str, Any]) -> tuple[Loopback, str]:
    guest = Loopback()
    style = {"size": 15, "color": "#fff", "accent": "#000"}
    entry = await sites.open_site(cast(Any, guest), state, style, "/mail/folder/Inbox")
    return guest, entry.replace(str(sites.PORT), str(guest.port))


async def test_sites_of_one_server_process_have_states_of_their_own_and_end_by_themselves() -> None:
    states = [VARIANTS["web/mail/reply"](seed)[0].state for seed in (0, 1)]
    (one, entry), (other, other_entry) = [await opened(state) for state in states]
    async with httpx2.AsyncClient(follow_redirects=True) as browser, httpx2.AsyncClient() as second:
        assert "Inbox" in (await browser.get(entry)).text
        assert (await second.get(other_entry)).status_code == 303
        token = token_in((await browser.get(f"http://127.0.0.1:{one.port}/mail/write")).text)
        form = {"to": states[0]["mail"]["people"][0], "subject": "x", "text": "", TOKEN: token}
        sent = await browser.post(f"http://127.0.0.1:{one.port}/mail/send", data=form, headers=USER)
        assert sent.status_code == 200
        assert (await sites.read_state(cast(Any, one)))["mail"]["messages"][-1]["subject"] == "x"
        assert await sites.read_state(cast(Any, other)) == states[1]
        elsewhere = await browser.get(f"http://127.0.0.1:{other.port}/mail/folder/Inbox")
        assert elsewhere.status_code == 403, "the cookie of one site does not open another"
        await asyncio.to_thread(one.close)
        with pytest.raises(InfrastructureError):
            await sites.read_state(cast(Any, one))
        assert (await second.get(f"http://127.0.0.1:{other.port}/shop/cart")).status_code == 200


async def test_the_end_of_the_server_process_is_an_outage_and_the_next_site_starts_another() -> None:
    state = VARIANTS["web/mail/reply"](0)[0].state
    guest, _ = await opened(state)
    (server,) = [pid for pid in processes.descendants(os.getpid()) if "web.server" in command_of(pid)]
    processes.kill(server)
    with pytest.raises(InfrastructureError):
        await sites.read_state(cast(Any, guest))
    again, entry = await opened(state)
    async with httpx2.AsyncClient() as browser:
        assert (await browser.get(entry)).status_code == 303
    assert await sites.read_state(cast(Any, again)) == state


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
