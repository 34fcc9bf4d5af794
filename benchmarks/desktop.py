"""Speed and memory of a local desktop compared with OSWorld's recipe in the same run: `python -m benchmarks.desktop
[--full]`.

An *action* is a click, sent to and processed by the X server. A *frame* is one copy of a 1920x1080 screen. A *step* is
an action in LibreOffice Calc (1280x720), the settled screen, and the frame as PNG. The recipe (`benchmarks/osworld`)
starts a Python process per action and takes a PNG with Pillow or scrot, whichever is faster; its step includes
OSWorld's two-second pause, except in the second ratio. Memory is the proportional set size of the X server and all
processes in the jail. Missing programs are installed. `--panel` measures only the theme with a panel.
"""

from __future__ import annotations

import asyncio
import os
import statistics

from benchmarks import desktop_parts as parts
from benchmarks.osworld.vm_client_recipe import PAUSE_S, Recipe, set_up
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.desktop.applications import install
from deskhand.desktop.applications.catalog import get_profile
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop

median = statistics.median
CALC = parts.Program(get_profile("calc").argv, get_profile("calc").window)


def show(found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        print(f"      {name}: {parts.spread(values)}", flush=True)


async def actions_and_frames(desktop: LocalDesktop, recipe: Recipe, repetitions: int) -> dict[str, list[float]]:
    """Return milliseconds of a click (with an X round trip) and of a frame copy, for Deskhand and the recipe."""
    session, executor = desktop._parts()
    hand, connection = executor.xtest, session.connection
    places = [(40 + 60 * (index % 20), 100 + 50 * (index % 12)) for index in range(240)]
    turn = iter(range(10**9))

    def act() -> None:
        hand.click(places[next(turn) % len(places)], "left", 1, ())
        connection.sync()

    def recipe_act() -> None:
        x, y = places[next(turn) % len(places)]
        recipe.act(f"pyautogui.click({x}, {y})")

    def measured() -> dict[str, list[float]]:
        return {
            "recipe's action": parts.durations_ms(recipe_act, repetitions),
            "action": parts.durations_ms(act, repetitions * 50),
            "recipe's frame, Pillow": parts.durations_ms(recipe.look, repetitions),
            "recipe's frame, scrot": parts.durations_ms(lambda: recipe.look(scrot=True), repetitions),
            "frame": parts.durations_ms(executor.settler.capture, repetitions * 20),
        }

    return await asyncio.to_thread(measured)


async def against_the_recipe(thresholds: Thresholds, size: str) -> None:
    python = set_up()
    desktop = LocalDesktop()
    try:
        await desktop.reset(parts.FULL_HD)
        with Recipe(python, desktop._parts()[0].x_server) as recipe:
            found = await actions_and_frames(desktop, recipe, {"smoke": 1, "small": 5, "full": 20}[size])
        show(found)
        action, frame, recipe_action = (median(found[name]) for name in ("action", "frame", "recipe's action"))
        recipe_frame = min(median(found[f"recipe's frame, {name}"]) for name in ("Pillow", "scrot"))
        ratio = recipe_action / action
        thresholds.check(
            "action",
            ratio >= 300,
            f"{action:.3f} ms against {recipe_action:.0f} ms, {ratio:.0f}x",
            ">= 300x, aim 1000x",
        )
        ratio = recipe_frame / frame
        thresholds.check("frame", ratio >= 50, f"{frame:.2f} ms against {recipe_frame:.0f} ms, {ratio:.0f}x", ">= 50x")
        await desktop.reset(parts.USUAL)
        script = parts.calc_script(
            await parts.open_application(desktop, CALC), {"smoke": 2, "small": 30, "full": 180}[size]
        )
        ours = await parts.our_steps(desktop, script)
        count = {"smoke": 1, "small": 6, "full": 18}[size]
        with Recipe(python, desktop._parts()[0].x_server) as recipe:
            paused = await asyncio.to_thread(recipe_steps, recipe, script[:count], PAUSE_S)
            unpaused = await asyncio.to_thread(recipe_steps, recipe, script[:count], 0.0)
        show({"Calc step": ours, "recipe's Calc step": paused, "recipe's Calc step without pause": unpaused})
    finally:
        await desktop.close()
    ratio = median(paused) / median(ours)
    thresholds.check(
        "Calc step", ratio >= 10, f"{median(ours):.0f} ms against {median(paused):.0f} ms, {ratio:.1f}x", ">= 10x"
    )
    print(f"      without any pause {median(unpaused) / median(ours):.1f}x", flush=True)
    thresholds.check("median Calc step", median(ours) <= 200, f"{median(ours):.0f} ms", "<= 200 ms")
    rate = 1000 * len(ours) / sum(ours)
    thresholds.check("Calc steps per second of a desktop", rate >= 5, f"{rate:.1f}", ">= 5")


def recipe_steps(recipe: Recipe, script: list[parts.Act], pause_s: float) -> list[float]:
    return [parts.durations_ms(lambda act=act: recipe.step(act.code, pause_s), 1)[0] for act in script]


async def starts(thresholds: Thresholds, size: str, *specs: DesktopSpec) -> None:
    repetitions = {"smoke": 1, "small": 5, "full": 20}[size]
    for spec in specs:
        name = f"{spec.width}x{spec.height}{'' if spec.name == 'plain' else f', {spec.name}'}"
        cold = await parts.cold_starts(spec, repetitions)
        warm = await parts.warm_resets(spec, repetitions)
        show({f"cold start, {name}": cold, f"warm reset, {name}": warm})
        thresholds.check(f"cold start, {name}", max(cold) <= 3000, f"slowest {max(cold):.0f} ms", "<= 3 s")
        thresholds.check(f"warm reset, {name}", max(warm) <= 500, f"slowest {max(warm):.0f} ms", "<= 0.5 s, aim 0.1 s")
    if parts.USUAL in specs:
        show({"cold start with Calc on the screen": await parts.cold_starts(parts.USUAL, min(repetitions, 3), CALC)})


async def with_panel(thresholds: Thresholds, size: str) -> None:
    """Start times and memory of a desktop with a panel, and the steps/s of 16."""
    small = (parts.SMALL_PROGRAM, parts.editor_script)
    await starts(thresholds, size, parts.PANEL, parts.PANEL_FULL_HD)
    for spec in (parts.PANEL, parts.PANEL_FULL_HD):
        one = await parts.crowd(spec, 1, *small, 0)
        name = f"memory with panel, {spec.width}x{spec.height}, small application"
        thresholds.check(name, max(one.mib) <= 250, f"{max(one.mib):.0f} MiB", "<= 250 MB")
    await together(thresholds, size, parts.PANEL, 2 if size == "smoke" else 16, *small)


async def crowds(thresholds: Thresholds, size: str) -> None:
    small = (parts.SMALL_PROGRAM, parts.editor_script)
    calc = (CALC, parts.calc_script)
    one = await parts.crowd(parts.USUAL, 1, *small, 6)
    thresholds.check("memory, small application", max(one.mib) <= 150, f"{max(one.mib):.0f} MiB", "<= 150 MB")
    one = await parts.crowd(parts.USUAL, 1, *calc, 12)
    thresholds.check("memory, Calc", max(one.mib) <= 400, f"{max(one.mib):.0f} MiB", "<= 400 MB")
    few = size == "smoke"
    await together(thresholds, size, parts.USUAL, 2 if few else 16, *small)
    await together(thresholds, size, parts.USUAL, 1 if few else 6, *calc)


async def together(
    thresholds: Thresholds, size: str, spec: DesktopSpec, count: int, program: parts.Program, script: parts.Script
) -> None:
    found = await parts.crowd(spec, count, program, script, {"smoke": 2, "small": 12, "full": 60}[size])
    name = f"{count} desktops with {program.argv[0]}{'' if spec.name == 'plain' else f', {spec.name}'}"
    thresholds.check(name, len(found.mib) == count, f"{found.steps} steps done", "all at once")
    print(f"      memory {sum(found.mib):.0f} MiB together, {max(found.mib):.0f} MiB the largest", flush=True)
    cores = len(os.sched_getaffinity(0))
    rate, per_core = found.steps / found.wall_s, found.per_core_second
    print(f"      {rate:.1f} steps/s together on {cores} cores, {per_core:.1f} per core-second", flush=True)


async def main() -> None:
    parser = parser_of(__doc__, "more repetitions")
    parser.add_argument("--panel", action="store_true", help="measure only the theme with a panel")
    options = parser.parse_args()
    size = options.size
    programs = [get_profile(name) for name in ("panel", *(() if options.panel else ("calc",)))]
    if missing := install.missing(install.packages_of(programs)):
        install.install(missing)
    print_head()
    thresholds = Thresholds()
    if not options.panel:
        await against_the_recipe(thresholds, size)
        await starts(thresholds, size, parts.SMALL, parts.USUAL)
        await crowds(thresholds, size)
    await with_panel(thresholds, size)
    thresholds.finish()


if __name__ == "__main__":
    asyncio.run(main())
