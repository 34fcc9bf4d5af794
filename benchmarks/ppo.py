"""Whether PPO with a critic learns: `python -m benchmarks.ppo [--full] [--seeds N] [--folder FOLDER]`.

The same as `benchmarks.learning`, but the demo trains by PPO: a value head on the policy's trunk, which the value loss teaches as
well, generalised advantages over the tokens of an episode, no baseline of the group. From the policy in the box, on families of the
easiest tier of `basics`. A seed has six and a half minutes of training, and takes about nine with both evaluations. Held-out tasks
are the same before and after and for every seed. Without --full the runs are two steps long, and their gains are not
judged.
"""

from __future__ import annotations

from benchmarks.learning import Gain, Outcome, options_of, run_seeds
from benchmarks.thresholds import Bars, print_head
from deskhand.store.run import Run

SETTINGS = ("trainer.algorithm=ppo",)
MINUTES = "minutes=6.5"


def judge(found: Outcome, bars: Bars) -> None:
    """Held-out success rises: the interval of the gain lies above 0."""
    gain = Gain(found.before.success, found.after.success)
    smaller = min(found.before.success.total, found.after.success.total)
    bars.check(f"{found.name}: held-out episodes", smaller >= 200, f"{smaller} on the smaller side", ">= 200")
    bars.check(f"{found.name}: success", gain.interval[0] > 0, f"{gain}", "interval above 0")


def print_critic(found: Outcome, run: Run) -> None:
    """What the critic knew, from the run's metrics."""
    known = [entry["trainer"]["explained_variance"] for entry in run.metrics()]
    shown = ", ".join("-" if value is None else f"{value:.2f}" for value in known)
    print(f"{found.name}: explained variance of returns by step: {shown}")


def main() -> None:
    options = options_of(__doc__, "runs/evidence/ppo")
    print_head()
    bars = Bars()
    outcomes = run_seeds(options, [*SETTINGS, *([MINUTES] if options.size == "full" else [])])
    for found in outcomes:
        with Run.open(options.folder / found.name.replace(" ", "-"), read_only=True) as run:
            print_critic(found, run)
        if options.size == "full":
            judge(found, bars)
    bars.finish()


if __name__ == "__main__":
    main()
