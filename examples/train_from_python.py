"""Train and evaluate from Python. Run: python examples/train_from_python.py runs/mine [KEY=VALUE ...]"""

import sys

import deskhand as dh

run_dir, *overrides = sys.argv[1:]
config = dh.load_config("configs/tiny_cpu.yaml", overrides=["loop.total_steps=10", *overrides])
result = dh.train(
    config,
    run_dir=run_dir,
    tasks=dh.load_tasks("basics", families=["terminal_run", "calculator_number"]),
    on_step=lambda step: print(f"step {step.step} of {step.total_steps}"),
)
if result.before and result.after:
    print(f"{result.before.success.value:.1%} -> {result.after.success.value:.1%}")
print(result.checkpoint, result.report_html)

with dh.open_run(run_dir) as run:
    for row in run.episodes("train", "trained")[:3]:
        episode = dh.load_episode(run, row.id)
        print(f"{episode.instruction!r}: score {episode.score:g} after {len(episode.steps)} steps")
