"""A task family of your own. Play it: python examples/own_task.py runs/own-task
Try to cheat on it: deskhand tasks audit examples/own_task.py
Train on it: deskhand train configs/tiny_cpu.yaml --set suite.format=python --set suite.path=examples/own_task.py ..."""

import random
import sys

import deskhand as dh


@dh.task_family("save_note", applications=["xterm"])
def save_note(seed: int) -> dh.Task:
    word = random.Random(seed).choice(["melon", "plum", "fig"])

    async def setup(desktop: dh.Desktop) -> None:
        await desktop.launch(["xterm"])
        await desktop.wait_window("xterm")

    async def check(desktop: dh.Desktop) -> dh.CheckResult:
        try:  # read by the host: the agent could replace what prints it in the guest
            text = (await desktop.pull("note.txt")).decode(errors="replace").strip()
        except OSError:
            text = ""
        return dh.CheckResult(float(text == word), detail=f"note.txt holds {text!r}, expected {word!r}")

    instruction = f"Write {word} into the file note.txt."
    return dh.Task(instruction=instruction, setup=setup, check=check, width=512, height=384, max_steps=4)


if __name__ == "__main__":
    tasks = dh.load_tasks(__file__, split="test", count=2)
    report = dh.evaluate("tiny", tasks=tasks, run_dir=sys.argv[1])
    print(f"{report.success.value:.0%} of {report.success.total} episodes")
