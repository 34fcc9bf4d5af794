"""A short soak on real desktops leaves nothing behind; and what judges a soak sees what grows, slows down or stays."""

from __future__ import annotations

from benchmarks import soak
from benchmarks.soak import Level, Soak
from benchmarks.thresholds import Thresholds
from deskhand.desktop.local.desktop import LocalDesktop


async def test_two_desktops_soak_without_a_leak():
    found = await soak.soak(2, 48)
    assert [len(quarter) for quarter in found.steps_ms] == [24] * 4
    thresholds = Thresholds()
    soak.judge(found, thresholds)
    assert not set(thresholds.missed) - {"p99 of a step"}, "how long a step takes is for the benchmark to say"


async def test_a_process_and_a_folder_of_the_soak_are_left_behind_and_older_ones_are_not(monkeypatch):
    earlier = LocalDesktop()
    await earlier.reset(soak.SMALL)
    kept: list[LocalDesktop] = []

    async def leak(desktop: LocalDesktop) -> None:
        kept.append(desktop)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(LocalDesktop, "close", leak)
            leaked = (await soak.soak(1, 4)).left
    finally:
        for desktop in kept:
            await desktop.close()
        clean = (await soak.soak(1, 4)).left
        await earlier.close()
    assert any(name.isdigit() for name in leaked)
    assert any(not name.isdigit() for name in leaked)
    assert clean == []


def judged(**changes) -> list[str]:
    levels = [Level(100.0, 40, 9, [30.0, 30.0], [50.0, 50.0]) for _ in range(4)]
    found = Soak([[10.0] * 200 for _ in range(4)], levels)
    for name, value in changes.items():
        setattr(found if hasattr(found, name) else levels[-1], name, value)
    thresholds = Thresholds()
    soak.judge(found, thresholds)
    return thresholds.missed


def test_each_kind_of_growth_misses_a_threshold():
    assert judged() == []
    assert judged(guest_mib=[500.0, 50.0]) == []
    assert judged(own_mib=120.0) == ["own memory"]
    assert judged(server_mib=[30.0, 45.0]) == ["memory of X servers"]
    assert judged(descriptors=41) == ["descriptors"]
    assert judged(threads=10) == ["threads"]
    assert judged(steps_ms=[[10.0] * 200] * 3 + [[10.0] * 190 + [25.0] * 10]) == ["p99 of a step"]
    assert judged(left=["77"]) == ["left behind"]
