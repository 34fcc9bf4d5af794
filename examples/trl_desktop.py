"""GRPO with TRL on real desktops. Run: python examples/trl_desktop.py Qwen/Qwen3-VL-4B-Instruct runs/trl
Needs TRL: pip install trl"""

import sys
from functools import partial

from datasets import Dataset  # pyright: ignore[reportMissingImports]
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from deskhand.integrations.trl.environment import TrlDesktop

TASK = "Use the tools on this desktop until the task is done, then call finish. The task: "

if __name__ == "__main__":
    model, folder = sys.argv[1:3]
    prompt = [{"role": "user", "content": TASK}]
    rows = [{"prompt": prompt, "family": "terminal_run", "variant": number} for number in range(64)]
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(folder, num_generations=4, max_completion_length=1024, max_tool_calling_iterations=8),
        train_dataset=Dataset.from_list(rows),
        environment_factory=partial(TrlDesktop, overrides=["suite.families=[terminal_run]"]),
    )
    trainer.train()
