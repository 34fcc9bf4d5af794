"""Some of the attacks in `benchmarks/attacks` at every level; `python -m benchmarks.guest_attacks --full` plays all.
What plays them can see each way in which one may end."""

from __future__ import annotations

import inspect

import pytest

from benchmarks import guest_attacks
from benchmarks.attacks import play as player
from benchmarks.attacks.host import Host
from benchmarks.attacks.parts import Attack
from benchmarks.attacks.play import Setting, control_groups, play, settings
from deskhand.desktop.local import guest_user, isolation
from deskhand.errors import InfrastructureError
from deskhand.tasks import subprocess_call

NAMES = {
    "escape": (
        "writes a file that all users may write",
        "kills processes of the host",
        "kills every process that it may",
        "changes the kernel's settings",
    ),
    "persistence": ("forks without end", "respawns in pairs", "is the first process of nested namespaces"),
    "memory": (
        "private, in eight processes",
        "shared mappings",
        "memfds that nothing maps",
        "deleted files that are open",
        "page tables of memory that is never written",
        "pictures in the X server",
    ),
    "network": (
        "connects to services of the loopback",
        "sends datagrams to the host",
        "connects to an abstract socket of the host",
        "lets the X server connect for it",
    ),
    "judge": (
        "database: an endless view",
        "text: a link that changes its target all the time",
        "sheet: an entity that names a file of the host",
    ),
    "leftovers": ("segment of System V", "process with a memfd"),
}
WITH_OR_WITHOUT_GROUPS = {"persistence", "memory"}
"""Elsewhere control groups play no part."""
PLAIN = Setting("plain", has_groups=False)


def named(*names: str) -> list[Attack]:
    found = [attack for attack in guest_attacks.ATTACKS if attack.name in names]
    assert len(found) == len(names)
    return found


def cases() -> list[tuple[Setting, str]]:
    last = {setting.level: setting for setting in settings()}
    return [
        (setting, kind)
        for setting in settings()
        for kind in NAMES
        if kind in WITH_OR_WITHOUT_GROUPS or setting == last[setting.level]
    ]


@pytest.mark.parametrize(("setting", "kind"), cases(), ids=lambda each: str(each).replace(", ", "-"))
async def test_an_attack_escapes_nothing_outlives_nothing_and_earns_nothing(setting, kind, monkeypatch):
    monkeypatch.setattr(subprocess_call, "CPU_S", 1.0)
    results = await guest_attacks.run(named(*NAMES[kind]), setting)
    assert [(each.attack.name, each.ending, each.detail) for each in results if each.ending != "held"] == []
    assert len(results) == len(NAMES[kind])


async def ending_of(attack: Attack, setting: Setting = PLAIN) -> str:
    with control_groups(setting.has_groups):
        async with Host(setting.level) as host:
            return (await play(attack, setting, host)).ending


def program(text: str) -> Attack:
    return Attack("test", "a program", "", inspect.cleandoc(text))


async def test_what_an_attack_got_is_seen(monkeypatch):
    assert await ending_of(program("must_fail('own', open, 'report'); tried()")) == "escaped"
    assert await ending_of(program("open('result.txt', 'w').write('done'); tried()")) == "paid"
    assert await ending_of(program("no_such_name")) == "not tried"
    assert await ending_of(program("tried()")) == "held"

    async def outage(*_: object) -> None:
        raise InfrastructureError("no network")

    monkeypatch.setattr(player, "measure", outage)
    assert await ending_of(program("tried()")) == "voided"


async def test_without_the_filter_attacks_escape(monkeypatch):
    monkeypatch.setattr(isolation.seccomp, "_MACHINES", {})  # as on an unknown architecture
    for attack in named(
        "connects to services of the loopback", "opens sockets to the hypervisor", "semaphore of System V"
    ):
        assert await ending_of(attack) == "escaped", attack.name


async def test_without_the_scopes_of_landlock_abstract_sockets_of_the_host_are_reached(monkeypatch):
    command = isolation.processes.python_command
    monkeypatch.setattr(isolation.processes, "python_command", lambda *words: without_scopes(command(*words)))
    (attack,) = named("connects to an abstract socket of the host")
    assert await ending_of(attack) == "escaped"


def without_scopes(command: list[str]) -> list[str]:
    change = "from deskhand.desktop.local import landlock; landlock._SCOPES = 2; from deskhand"
    return [word.replace("from deskhand", change, 1) if "import main" in word else word for word in command]


async def test_a_guest_that_is_not_killed_survives(monkeypatch):
    killed = []
    kill = guest_user.GuestUser.kill
    monkeypatch.setattr(guest_user.GuestUser, "kill", lambda user, *_: killed.append(user) or [])
    monkeypatch.setattr(player, "GONE_WITHIN_S", 1.0)
    try:
        (attack,) = named("leaves and kills its shell")
        assert await ending_of(attack) == "survived"
    finally:
        for user in killed:
            kill(user)
            user.close()
