"""Progress on a terminal and without one."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from deskhand.recipes.step_report import StepReport
from deskhand.reporting.terminal import TerminalDisplay, comparison, evaluation_table, warnings_of
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion

STEP = StepReport(
    step=3,
    total_steps=40,
    version=3,
    eta_s=95.0,
    metrics={
        "perf/episodes_per_minute": 211.6,
        "reward/mean": 0.512,
        "reward/success_rate": 0.48,
        "episodes/errored_frac_total": 0.0125,
    },
)


def shown(terminal: bool) -> str:
    out = io.StringIO()
    with TerminalDisplay(Console(file=out, force_terminal=terminal, width=100)) as display:
        display.status("starting")
        display.step(STEP)
        display.evaluated("version 3", 20, 40, 11, 0)
        display.evaluated("version 3", 21, 40, 11, 0)
        display.demonstrations(6, 6, 5, 2)
        display.log("finished")
    return out.getvalue()


def test_without_a_terminal_there_are_plain_lines() -> None:
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert text.splitlines() == [
        "step 3/40  episodes/min 212  reward 0.51  success 48 %  errored 1.2 %  version 3  ETA 1 min 35 s",
        "version 3: 20 of 40 episodes, 11 successes",
        "demonstrations: 6 of 6 episodes, 5 successes, 2 errored attempts",
        "finished",
    ]


def test_on_a_terminal_there_is_a_table() -> None:
    text = shown(terminal=True)
    for cell in ("episodes/min", "3/40", "212", "0.51", "48 %", "1.2 %", "1 min 35 s", "finished"):
        assert cell in text


def text_of(table) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def test_episodes_without_a_score_are_shown_beside_success() -> None:
    rates, started = Proportion(8, 10), Proportion(8, 16)
    all_scored = EvalReport(
        "a", rates, {"f": rates}, rates, 0.8, success_of_started=rates, family_of_started={"f": rates}
    )
    some = replace(
        all_scored,
        name="b",
        errored={"infrastructure": 2},
        success_of_started=started,
        family_of_started={"f": started},
    )
    assert "of all started" not in text_of(evaluation_table(all_scored))
    shown = text_of(evaluation_table(some))
    assert "of all started" in shown
    assert shown.count("8/16") == 2
    assert shown.count("8/10") == 3
    compared = text_of(comparison(all_scored, some))
    assert "of all started" in compared
    assert "-30.0" in compared
    assert "of all started" not in text_of(comparison(all_scored, all_scored))
    (warning,) = warnings_of(all_scored, some)
    assert warning.startswith("b: 6 of 16 episodes have no score")


def test_scores_that_trust_the_guest_are_shown() -> None:
    rates = Proportion(8, 10)
    report = EvalReport("a", rates, {"f": rates}, rates, 0.8)
    assert "untrusted" not in text_of(evaluation_table(report))
    shown = text_of(evaluation_table(replace(report, num_guest_trusted=3)))
    assert "untrusted scores 3/10" in " ".join(shown.split())


def test_the_comparison_says_whether_intervals_are_apart() -> None:
    def report(hits: int, clicks: int) -> EvalReport:
        return EvalReport(
            "v", Proportion(hits, 240), {"dialog_choice": Proportion(hits // 4, 60)}, Proportion(clicks, 240), 0.5
        )

    out = io.StringIO()
    Console(file=out, width=80).print(comparison(report(91, 120), report(171, 126)))
    assert [line.split() for line in out.getvalue().splitlines()][1:] == [
        ["success", "before", "after", "points", "intervals"],
        ["all", "families", "37.9", "%", "[32.0,", "44.2]", "71.2", "%", "[65.2,", "76.6]", "+33.3", "apart"],
        ["dialog_choice", "36.7", "%", "[25.6,", "49.3]", "70.0", "%", "[57.5,", "80.1]", "+33.3", "apart"],
        ["first", "click", "hits", "50.0", "%", "[43.7,", "56.3]", "52.5", "%", "[46.2,", "58.7]", "+2.5", "overlap"],
    ]
    assert out.getvalue().startswith("240 episodes before, 240 after; 95 % Wilson intervals")
