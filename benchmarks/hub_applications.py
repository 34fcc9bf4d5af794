"""Real applications of CUA-Gym-Hub: `python -m benchmarks.hub_applications --folder DIR [--pictures DIR]`.

`DIR` holds bundles and, in `hub/`, a checkout of the hub in which the applications of the bundles are built (see
docs/writing-tasks.md). Every bundle with a `solution.json` is played on new local desktops: without acting, with a near
miss, and with the solution, by real clicks and keys. Then a guest tries to post the state that the solution left: by a
program, in the address bar, and by a page and a cookie of a server of its own. Finally the host writes that state, to
show that it is worth 1. `benchmarks/hub_bundles` has three bundles.

Thresholds, for each bundle: 0 without acting, below 1 for the near miss, 1 for the solution and for the host, and 0 for
the guest, whose requests leave the state as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.attacks.posted_state import do, post_state
from benchmarks.guest_attacks import print_no_logs
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.actions.ops import Click, Key, Point, Type, screen_px
from deskhand.config.schema import SuiteConfig
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.recipes.suite import load_suite
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks import chromium
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.basics.hd_screen import wait_still
from deskhand.tasks.suites.web import sites
from deskhand.tasks.task import Task

SOLUTION = "solution.json"
"""Has "solution" and "near_miss": lists of ["click", XPath], ["type", text] and ["key", "ctrl+a"]."""
FIND_TIMEOUT_S = 15.0
MIN_REFUSED = 6
"""Requests of the guest that must have reached the server, so that the attack was one."""
COLUMNS = ("nothing", "near miss", "solution", "posted by a guest", "its refused requests", "written by the host")
_FIND = """(path => {
  const found = document.evaluate(path, document, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE);
  for (let number = 0; number < found.snapshotLength; number++) {
    const at = found.snapshotItem(number).getBoundingClientRect();
    const y = at.top + at.height / 2;
    if (at.width && at.height && y > 0 && y < innerHeight)
      return [screenX + at.left + at.width / 2, screenY + outerHeight - innerHeight + y];
  }
  return null;
})(%s)"""


@asynccontextmanager
async def started(task: Task) -> AsyncIterator[LocalDesktop]:
    """Yield a new desktop after the task's set-up."""
    desktop = LocalDesktop()
    try:
        await desktop.reset(desktop_spec(task))
        await task.setup(desktop)
        yield desktop
    finally:
        await desktop.close()


async def act(task: Task, desktop: LocalDesktop, kind: str, what: str) -> None:
    """Perform one act of a solution. Raises `TimeoutError` if the page does not show where to click."""
    if kind == "click":
        deadline, at = asyncio.get_running_loop().time() + FIND_TIMEOUT_S, None
        while at is None:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{task.id}: the page does not show {what}")
            await asyncio.sleep(0.1)
            at = await chromium.session_of(desktop).evaluate(_FIND % json.dumps(what))
        await do(desktop, Click(Point(int(at[0]), int(at[1]), screen_px(task.width, task.height))))
    else:
        await do(desktop, Type(what) if kind == "type" else Key(tuple(what.split("+"))))
    await wait_still(desktop, 0.2, timeout_s=5.0)


async def worth(task: Task, desktop: LocalDesktop) -> float:
    """Return the score of a desktop as it is. Raises `RuntimeError` if it has none."""
    outcome = await judge(task, desktop)
    if not isinstance(outcome, Scored):
        raise RuntimeError(f"{task.id}: {outcome}")
    return outcome.value


async def play(task: Task, acts: dict[str, list[list[str]]], pictures: Path | None) -> tuple[list[float], bool]:
    """Return what `COLUMNS` names, and whether the state is as it was after the guest's attack."""
    row, states = list[float](), dict[str, Any]()
    for column in ("nothing", "near_miss", "solution"):
        async with started(task) as desktop:
            if pictures is not None:
                (pictures / f"{task.family}_start.png").write_bytes((await desktop.observe()).png())
            for kind, what in acts.get(column, []):
                await act(task, desktop, kind, what)
            row.append(await worth(task, desktop))
            states[column] = await sites.read_state(desktop)
            if pictures is not None:
                (pictures / f"{task.family}_{column}.png").write_bytes((await desktop.observe()).png())
    async with started(task) as desktop:
        before = await sites.read_state(desktop)
        (app,) = before
        goal = states["solution"][app]["current"]
        refused = await post_state(desktop, app, goal)
        is_same = await sites.read_state(desktop) == before
        row += [await worth(task, desktop), refused]
        if pictures is not None:
            (pictures / f"{task.family}_attack.png").write_bytes((await desktop.observe()).png())
        await sites.write_state(desktop, {app: {**before[app], "current": goal}})
        row.append(await worth(task, desktop))
    return row, is_same


async def run(folder: Path, pictures: Path | None, thresholds: Thresholds) -> dict[str, list[float]]:
    """Play the bundles of a folder that have a solution; return what `COLUMNS` names for each."""
    suite = load_suite(SuiteConfig(format="cuagym", path=folder, allow_python_checks=True), "local")
    print(suite.summary, *suite.skipped, sep="\n", flush=True)
    rows = dict[str, list[float]]()
    for name in suite.train_tasks:
        if (solution := folder / name / SOLUTION).is_file():
            task = suite.make(name, 0)
            row, is_same = await play(task, json.loads(solution.read_text()), pictures)
            rows[f"{name} ({task.metadata['app_type']})"] = row
            nothing, near, solved, posted, refused, written = row
            is_right = nothing == posted == 0.0 and near < solved == written == 1.0
            measured = f"{' '.join(f'{each:g}' for each in row)}, state {'as it was' if is_same else 'changed'}"
            wanted = f"0, < 1, 1, 0, >= {MIN_REFUSED}, 1, state as it was"
            thresholds.check(name, is_right and is_same and refused >= MIN_REFUSED, measured, wanted)
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="bundles, and the hub in hub/ (default: $DESKHAND_CUA_GYM)")
    parser.add_argument("--pictures", type=Path, help="where to write screenshots")
    options = parser.parse_args()
    folder = options.folder or os.environ.get("DESKHAND_CUA_GYM")
    print_no_logs()
    print_head()
    thresholds, rows = Thresholds(), dict[str, list[float]]()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    if folder:
        rows = asyncio.run(run(Path(folder).absolute(), options.pictures, thresholds))
        print(f"| bundle | {' | '.join(COLUMNS)} |\n|{' --- |' * (1 + len(COLUMNS))}")
        for name, row in rows.items():
            print(f"| {name} | {' | '.join(f'{each:g}' for each in row)} |", flush=True)
    measured = str(len(rows)) if folder else "0, no --folder"
    thresholds.check("bundles with a solution", len(rows) > 0, measured, ">= 1")
    thresholds.finish()


if __name__ == "__main__":
    main()
