"""Whether RL carries over to families that it never trains: `python -m benchmarks.carry_over [--full] [--seeds N]
[--folder DIR]`.

Runs the demo with `suite.held_out_families`: it trains `TRAINED` and tests `HELD_OUT`, sampled and greedily, before and
after. The pretraining of the bundled policy has used `terminal_close`, but neither `dialog_choice` nor its program.
Training has the settings that learn from the fewest episodes (`benchmarks.learning_methods`). With --full there are
three seeds of `STEPS` steps, and one run on noise images as a control; a seed takes ten minutes. The only threshold is
the number of test episodes: what the runs show is the result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.learning import Outcome, judge_size, options_of, print_outcome, run_demo, run_seeds
from benchmarks.learning_methods import METHODS, TOGETHER, student_interval
from benchmarks.thresholds import Thresholds, print_head
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion

TRAINED, HELD_OUT = ("terminal_run", "calculator_number"), ("terminal_close", "dialog_choice")
STEPS = 12
SETTINGS = (
    *METHODS[TOGETHER],
    "max_minutes=60",
    f"loop.total_steps={STEPS}",
    f"suite.families=[{', '.join((*TRAINED, *HELD_OUT))}]",
    f"suite.held_out_families=[{', '.join(HELD_OUT)}]",
)


def success_of(report: EvalReport, family: str) -> float:
    """Return the success of a family, NaN if none of its episodes was scored."""
    return report.by_family.get(family, Proportion(0, 0)).value


def print_means(found: Sequence[Outcome]) -> None:
    """Print the mean gain of each held-out family over the seeds, with Student's 95 % interval."""
    head = ("family", "temperature", "mean gain in points", "gains by seed")
    print()
    for row in (head, ("---",) * len(head)):
        print(f"| {' | '.join(row)} |")
    pairs = {"1": [(one.before, one.after) for one in found], "0": [one.more["greedy"] for one in found if one.more]}
    for temperature, reports in pairs.items():
        for family in HELD_OUT if reports else ():
            gains = [100 * (success_of(after, family) - success_of(before, family)) for before, after in reports]
            low, high = student_interval(gains)
            each = ", ".join(f"{gain:+.1f}" for gain in gains)
            print(f"| {family} | {temperature} | {statistics.fmean(gains):+.1f} [{low:+.1f}, {high:+.1f}] | {each} |")


def main() -> None:
    options = options_of(__doc__, "runs/evidence/carry_over")
    is_full = options.size == "full"
    options.seeds = options.seeds or (3 if is_full else 1)
    print_head()
    print(f"trained: {', '.join(TRAINED)}; held out: {', '.join(HELD_OUT)}")
    thresholds = Thresholds()
    found = run_seeds(options, SETTINGS, ["greedy"] if options.size != "smoke" else [])
    if is_full:
        print_outcome(run_demo("blind", options.folder / "blind", ["seed=0", *SETTINGS, "agent.noise_images=true"]))
    print_means(found)
    print()
    if is_full:
        for one in found:
            judge_size(one, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
