"""Whether PPO with a critic learns: `python -m benchmarks.ppo [--full] [--seeds N] [--folder DIR]`.

Like `benchmarks.learning`, but with PPO: a value head on the policy's trunk, trained jointly, GAE over the tokens of
an episode and no group baseline, on the easiest families of `basics`. A seed trains for six and a half minutes and
takes about nine with both evaluations. Without --full the runs take two steps and gains are not judged.
"""

from __future__ import annotations

from benchmarks.learning import Gain, Outcome, judge_size, options_of, run_seeds
from benchmarks.thresholds import Thresholds, print_head
from deskhand.store.run import Run

SETTINGS = ("trainer.algorithm=ppo", "trainer.num_minibatches=1")
MINUTES = "max_minutes=6.5"


def judge(found: Outcome, thresholds: Thresholds) -> None:
    """Check that the interval of the held-out gain lies above 0."""
    gain = Gain(found.before.success, found.after.success)
    judge_size(found, thresholds)
    thresholds.check(f"{found.name}: success", gain.interval[0] > 0, f"{gain}", "interval above 0")


def print_critic(found: Outcome, run: Run) -> None:
    """Print the critic's metrics."""
    known = [entry.get("train/explained_variance") for entry in run.metrics()]
    shown = ", ".join("-" if value is None else f"{value:.2f}" for value in known)
    print(f"{found.name}: explained variance of returns by step: {shown}")


def main() -> None:
    options = options_of(__doc__, "runs/evidence/ppo")
    print_head()
    thresholds = Thresholds()
    outcomes = run_seeds(options, [*SETTINGS, *([MINUTES] if options.size == "full" else [])], ())
    for found in outcomes:
        with Run.open(options.folder / found.name.replace(" ", "-"), read_only=True) as run:
            print_critic(found, run)
        if options.size == "full":
            judge(found, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
