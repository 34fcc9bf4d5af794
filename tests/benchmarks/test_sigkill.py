"""SIGKILL of a desktop's parts, of a pool's owner and of a server leaves nothing behind and scores nobody; what looks
for that can fail."""

import subprocess
from types import SimpleNamespace

from benchmarks import sigkill, sigkill_report
from benchmarks.thresholds import Thresholds
from deskhand.tasks.outcome import Errored, Scored

COUNT = len(sigkill.VICTIMS)


async def test_a_round_of_each_kind_leaves_no_orphan_and_no_wrong_score(tmp_path):
    tally = await sigkill.rounds(tmp_path, COUNT, seed=3)
    thresholds = Thresholds()
    sigkill.report(tally, thresholds, COUNT)
    assert thresholds.missed == []
    assert set(tally.rounds) == set(sigkill.VICTIMS)


def ended(episode: str, outcome) -> SimpleNamespace:
    return SimpleNamespace(episode_id=episode, outcome=outcome)


def test_a_score_after_a_kill_and_an_outage_without_one_are_wrong():
    called_late, called_before = SimpleNamespace(called_at=101.0), SimpleNamespace(called_at=99.0)
    scored, outage = Scored(1.0, {}), Errored("infrastructure", "its X server has ended")
    for observed, results, wrong, late in (
        (called_late, [ended("a", outage), ended("b", scored)], 0, 0),
        (called_late, [ended("a", scored), ended("b", scored)], 1, 0),
        (called_before, [ended("a", scored), ended("b", scored)], 0, 1),
        (called_late, [ended("a", outage), ended("b", outage)], 1, 0),
        (called_late, [ended("a", Errored("evaluator", "")), ended("b", scored)], 1, 0),
    ):
        tally = sigkill_report.Tally()
        sigkill_report.judge(results, [(observed, "a")], 100.0, "x server", tally)  # type: ignore[arg-type]
        assert (len(tally.wrong), tally.late) == (wrong, late)


def test_a_process_that_stays_is_counted(monkeypatch):
    monkeypatch.setattr(sigkill_report, "GONE_WITHIN_S", 0.2)
    stray = subprocess.Popen(["sleep", "60"])
    try:
        tally = sigkill_report.Tally()
        sigkill_report.gone([stray.pid], sigkill_report.time.monotonic(), tally)
        assert tally.orphans == 1
    finally:
        stray.kill()
        stray.wait()
