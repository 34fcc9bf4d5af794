"""A reward on top of the judge's score. Run: python examples/own_reward.py runs/own-reward [KEY=VALUE ...]
In a config: reward: examples/own_reward.py:shorter"""

import sys

import deskhand as dh


@dh.reward
def shorter(episode: dh.Episode) -> float:
    """Prefer short solutions: 0.01 less per step."""
    return max(0.0, episode.score - 0.01 * len(episode.steps))


if __name__ == "__main__":
    run_dir, *overrides = sys.argv[1:]
    config = dh.load_config("configs/tiny_cpu.yaml", overrides=overrides)
    dh.train(
        config,
        run_dir=run_dir,
        reward=shorter,
        on_step=lambda step: print(
            f"step {step.step}: {step.metrics['reward/mean']:.3f}, score {step.metrics['reward/score']:.3f}"
        ),
    )
