"""`deskhand diagnose`: every kind of trouble has evidence and something to change; a healthy run has none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import episode_results
import pytest

from benchmarks.generated_run import generate
from deskhand.agents.episode_context import Transcript
from deskhand.errors import ConfigError
from deskhand.reporting.diagnosis import Diagnosis, diagnose
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, Run
from deskhand.tasks.outcome import Errored, Finding, Scored

STEP = {"schema_version": 2, "version": 1, "time/elapsed": 10.0}


def keep(run: Run, result: EpisodeResult, state: str, phase: str = TRAIN) -> None:
    """Store a finished episode."""
    run.start_episode(EpisodeRow(result.episode_id, phase, None, 0, "t", result.family, 1, "train", "in_flight"))
    row = dataclasses.replace(row_of(result, phase, state), task_id=f"task of {result.episode_id}")
    run.finish_episode(row, *to_record(result))


def episode(name: str, value: float, **changes: Any) -> EpisodeResult:
    findings = (Finding("the display", value, "27", "57"),)
    changes = {"seconds": {"total": 2.0, "solve": 1.5, "model": 0.3}, **changes}
    return episode_results.result(value, episode_id=name, outcome=Scored(value, {}, findings=findings), **changes)


def transcript(stop_reason: Any, *kinds: Any) -> Transcript:
    """One whose replies had these errors; "" is none."""
    first = episode_results.step(0, ())
    steps = tuple(
        dataclasses.replace(first, index=at, text=f"reply {at}\x1b[31m", reply_error=kind, error=kind or None)
        for at, kind in enumerate(kinds)
    )
    return Transcript(steps, stop_reason, "d" * 64, 0.1)


def with_episodes(run: Run, *results: EpisodeResult) -> None:
    for result in results:
        keep(run, result, "errored" if isinstance(result.outcome, Errored) else "trained")


def several(count: int, value: float, **changes: Any) -> list[EpisodeResult]:
    return [episode(f"{value:g}-{number}", value, **changes) for number in range(count)]


def committed(run: Run, *metrics: dict[str, Any], counts: dict[str, Any] | None = None, step: int = 1) -> None:
    """Store steps with these metrics, and a checkpoint of the last one."""
    entries = [{**STEP, "step": at, **entry} for at, entry in enumerate(metrics, 1)]
    point = Checkpoint(step, step, run.folder / "checkpoints" / f"step-{step:06d}", 1.0)
    run.commit(counts=counts or {"errored": {}}, metrics=entries, checkpoint=point)


ALERT = {
    "metric": "train/entropy",
    "value": 0.1,
    "threshold": ">= 0.5",
    "cause": "replies hardly vary",
    "hint": "raise it",
}


def failing(run: Run) -> None:
    with_episodes(run, *several(6, 0.0), *several(2, 1.0))


def errored(run: Run) -> None:
    with_episodes(run, *several(3, 1.0), episode_results.result(None, episode_id="lost"))


def too_short(run: Run) -> None:
    with_episodes(run, *several(4, 0.0, transcript=transcript("max_steps", "", "")), *several(9, 1.0))


def unparsed(run: Run) -> None:
    with_episodes(run, *several(4, 1.0, transcript=transcript("done", "format", "")))


def cut(run: Run) -> None:
    with_episodes(run, *several(4, 1.0, transcript=transcript("done", "truncated", "", "")))


def alert(run: Run) -> None:
    committed(run, {"alerts": [ALERT]}, {"alerts": []}, {"alerts": [ALERT]})


def flat(run: Run) -> None:
    for result in several(4, 1.0):
        keep(run, result, "zero_variance")
    committed(run, counts={"trained": 2, "zero_variance": 4, "stale": 0, "errored": {}})


def stale(run: Run) -> None:
    committed(run, counts={"trained": 4, "zero_variance": 0, "stale": 2, "errored": {}})


def not_learning(run: Run) -> None:
    for version in (0, 9):
        shown = [episode(f"{version}-{at}", float(at % 2), version=version, version_max=version) for at in range(40)]
        with_episodes(run, *shown)
    with_episodes(run, *(episode(f"last-{at}", 0.0, version=10, version_max=10) for at in range(3)))
    committed(run, step=12)


def slow_training(run: Run) -> None:
    committed(run, *({"time/step": 10.0, "time/train_step": 8.0, "time/rollout_wait": 1.0} for _ in range(3)))


def slow_model(run: Run) -> None:
    with_episodes(run, *several(3, 1.0, seconds={"total": 10.0, "solve": 9.0, "model": 8.0}))
    committed(run, {"time/step": 10.0, "time/train_step": 1.0, "time/rollout_wait": 9.0})


def quota(run: Run) -> None:
    with_episodes(run, *several(3, 1.0, seconds={"total": 10.0, "quota_wait": 5.0}))


def evaluation(run: Run) -> None:
    for result in several(3, 1.0, transcript=transcript("done", "format")):
        keep(run, result, "scored", "model m")


CASES = {
    failing: ("wrong", "6 of 8 scored episodes failed", "the display: read 27, expected 57", "deskhand view"),
    errored: (
        "wrong",
        "1 of 4 episodes have no score (infrastructure)",
        "episode lost: infrastructure",
        "deskhand doctor",
    ),
    too_short: ("wrong", "4 of 4 failed episodes were ended by steps", "max_steps", "suite.max_episode_steps"),
    unparsed: ("wrong", "4 of 8 replies could not be parsed", "reply 0 [31m", "agent.action_format"),
    cut: ("wrong", "4 of 12 replies were cut", "4 newest", "agent.max_new_tokens"),
    alert: ("wrong", "replies hardly vary", "raised in 2 of 3 steps, last in step 3", "raise it"),
    flat: ("wrong", "4 of 6 scored episodes taught nothing", "square (always solved)", "suite.families"),
    stale: ("wrong", "2 of 6 scored episodes were too old", "loop.max_staleness", "loop.max_concurrent_episodes"),
    not_learning: ("wrong", "success has not risen in 12 steps", "50 % of 40 episodes at version 0", "learning_rate"),
    slow_training: ("slow", "80 % of the time of the last 3 steps is training", "8 s", "policy.lora"),
    slow_model: ("slow", "80 % of an episode's time is the model's replies", "model 8.0 s", "engine.max_num_seqs"),
    quota: ("slow", "waits 5.0 s for a quota", "newest episodes", "quota"),
    evaluation: ("wrong", "model m: none of 3 replies could be parsed", "evaluation model m", "agent.action_format"),
}


def found_in(folder: Path, make: Any = None) -> Diagnosis:
    with Run.create(folder / "run", {"title": "A run", "config": {"loop": {"total_steps": 20}}}) as run:
        if make is not None:
            make(run)
        return diagnose(run)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_trouble_has_evidence_and_a_change(make: Any, tmp_path: Path) -> None:
    kind, what, evidence, change = CASES[make]
    issues = found_in(tmp_path, make).issues
    matching = [each for each in issues if each.kind == kind and what in each.what]
    assert len(matching) == 1, issues
    assert evidence in matching[0].evidence
    assert change in matching[0].change
    assert 0 < matching[0].share <= 1
    for each in issues:
        assert "\n" not in f"{each.what}{each.evidence}{each.change}"
        assert "\x1b" not in f"{each.what}{each.evidence}{each.change}"


def healthy(run: Run) -> None:
    for version, solved in ((0, 8), (9, 36)):
        shown = [
            episode(f"{version}-{at}", float(at < solved), version=version, version_max=version) for at in range(40)
        ]
        with_episodes(run, *[result for result in shown if result.reward == 1.0 or version == 0][:40])
    with_episodes(run, *(episode(f"last-{at}", 0.0, version=10, version_max=10) for at in range(3)))
    parts = {"time/step": 10.0, "time/train_step": 3.9, "time/rollout_wait": 3.9, "time/publish": 1.0}
    counts = {"trained": 70, "zero_variance": 4, "stale": 2, "errored": {}}
    committed(run, *(parts for _ in range(3)), counts=counts, step=12)


def test_a_healthy_or_empty_run_has_nothing_to_change(tmp_path: Path) -> None:
    for name, make in (("healthy", healthy), ("empty", None)):
        found = found_in(tmp_path / name, make)
        wrong = [each for each in found.issues if "scored episodes failed" not in each.what]
        assert not wrong, wrong
    lines = list(found_in(tmp_path / "third").lines())
    assert "nothing is wrong" in lines
    assert "nothing is slow" in lines
    assert lines[-1].startswith("every episode, message and curve: deskhand view ")


def test_the_page_of_a_run_is_text_or_json_and_changes_nothing(tmp_path: Path, cli) -> None:
    folder = generate(tmp_path / "run", 64)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.sqlite-shm"}
    text = cli("diagnose", str(folder))
    found = json.loads(cli("diagnose", str(folder), "--json"))
    assert {path: path.read_bytes() for path in before} == before
    assert text.splitlines()[0] == f"Generated run ({folder})"
    assert found["issues"]
    for issue in found["issues"]:
        assert issue["what"] in text
        assert f"   change:   {issue['change']}" in text
    shares = [issue["share"] for issue in found["issues"]]
    assert shares == sorted(shares, reverse=True)
    with Run.open(folder, read_only=True) as run:
        named = [
            word for issue in found["issues"] for word in issue["evidence"].split() if word.strip(":") in _ids(run)
        ]
    assert named, "an episode to look at"


def _ids(run: Run) -> set[str]:
    return {row.id for row in run.episodes()}


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, cli_error) -> None:
    assert "pass a run directory" in cli_error("diagnose", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="not a run directory"):
        Run.open(tmp_path)
