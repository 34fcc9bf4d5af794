"""A task family of your own. Play it: python examples/own_task.py runs/own-task
Try to cheat on it: deskhand tasks audit examples/own_task.py
Train on it: deskhand train configs/tiny_cpu.yaml --set suite.format=python --set suite.path=examples/own_task.py ..."""

import random
import sys
from collections.abc import AsyncIterator

import deskhand as dh
from deskhand.actions.ops import Click, Done, Point, Type, screen_px
from deskhand.tasks.task import Rect

WIDTH, HEIGHT = 512, 384
WORDS = ["melon", "plum", "fig", "pear", "grape"]


@dh.task_family("save_note", applications=["xterm"], summary="write a word into a file in one of two terminals")
def save_note(seed: int) -> dh.Task:
    rng = random.Random(seed)  # everything that differs between variants comes from the seed
    word, name = rng.choice(WORDS), rng.choice(["notes", "list", "box"])
    places = rng.sample([(8, 30), (8, 220)], 2)

    async def setup(desktop: dh.Desktop) -> None:
        for title, (x, y) in zip((name, "other"), places, strict=True):
            await desktop.push(f"{title}/readme", b"")
            await desktop.launch(["xterm", "-T", title, "-geometry", "60x9"], cwd=title)
            (window,) = await desktop.wait_window(title)
            await desktop.place_window(window, x, y)

    async def check(desktop: dh.Desktop) -> dh.CheckResult:
        try:  # read by the host: what a program in the guest prints, the agent could have replaced
            text = (await desktop.pull(f"{name}/note.txt")).decode(errors="replace").strip()
        except OSError:
            text = ""
        return dh.CheckResult(float(text == word), detail=f"note.txt holds {text!r}, expected {word!r}")

    async def targets(desktop: dh.Desktop) -> tuple[Rect | None, list[Rect]]:
        """The rectangle of the right first click, and those of wrong ones."""
        windows = await desktop.windows()
        boxes = {each.title: Rect(each.x, each.y, each.x + each.width, each.y + each.height) for each in windows}
        return boxes[name], [boxes["other"]]

    async def oracle(desktop: dh.Desktop) -> AsyncIterator[list[dh.Op]]:
        """A solution, one list of ops per step."""
        target, _ = await targets(desktop)
        assert target is not None
        yield [Click(Point(*target.center, screen_px(WIDTH, HEIGHT)))]
        yield [Type(f"echo {word} > note.txt\n")]
        yield [Done()]

    return dh.Task(
        instruction=f"Write {word} into the file note.txt, in the folder of the terminal {name}.",
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        width=WIDTH,
        height=HEIGHT,
        max_steps=4,
    )


if __name__ == "__main__":
    tasks = dh.load_tasks(__file__, split="held_out", count=2)
    report = dh.evaluate("tiny", tasks=tasks, run_dir=sys.argv[1])
    print(f"{report.success.value:.0%} of {report.success.total} episodes")
