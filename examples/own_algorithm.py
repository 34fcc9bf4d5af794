"""An algorithm of your own. Run: python examples/own_algorithm.py runs/own-algorithm [KEY=VALUE ...]
In a config: trainer: {algorithm: "examples/own_algorithm.py:median_baseline"}"""

import sys

import numpy as np

import deskhand as dh


@dh.algorithm("median_baseline", clip_ratio_low=0.2, clip_ratio_high=0.2)
def median_baseline(rewards: np.ndarray) -> np.ndarray:
    """The rewards of one group in, one advantage per episode out."""
    return rewards - np.median(rewards)


if __name__ == "__main__":
    run_dir, *overrides = sys.argv[1:]
    config = dh.load_config("configs/tiny_cpu.yaml", overrides=overrides)
    result = dh.train(config, run_dir=run_dir, algorithm=median_baseline)
    print(f"{result.steps} steps, last checkpoint {result.checkpoint}")
