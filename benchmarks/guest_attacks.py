"""Attacks of hostile guests: `python -m benchmarks.guest_attacks [--full] [--only WORD]`.

Each attack is an episode whose only action is a hostile program: it tries to escape, to outlive its desktop, to take
memory beyond the limit, to reach the network, to break or fool the judge by a file, or to leave something for the next
episode. `benchmarks/attacks` has one table per kind. Every attack runs at each level of isolation, with and without
control groups where the machine has them. One ends as

- escaped: a guest reached something of the host, of another desktop or of an earlier episode, or exceeded a limit;
- survived: a process, folder or control group was left 5 s after close, or after the owner was killed;
- paid: the episode scored above 0, or voided: it has no score;
- held: none of these.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path

import structlog

from benchmarks.attacks import escape, judged_files, leftovers, memory, network, persistence
from benchmarks.attacks.host import Host
from benchmarks.attacks.parts import Attack
from benchmarks.attacks.play import Result, Setting, control_groups, own, play, play_with_killed_owner, settings
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.desktop.local import processes

TABLES = {
    "escape": escape.ESCAPES,
    "persistence": persistence.PERSISTENCE,
    "memory": memory.TABLE,
    "network": network.TABLE,
    "judge": judged_files.TABLE,
    "leftovers": leftovers.TABLE,
}
ATTACKS = [attack for table in TABLES.values() for attack in table]
ENDINGS = ("escaped", "survived", "paid", "voided", "not tried", "held")
MIN_ATTACKS = 60
MAX_TRIES = 5
MAX_JUDGE_S = 5.0
MAX_COST_MIB = 200.0
HEAD = "| attack | kind | what must hold |"


def spread(number: int) -> list[Attack]:
    """Return attacks of all kinds in turn, `number` of each."""
    rows = zip_longest(*(table[:: max(1, len(table) // number)][:number] for table in TABLES.values()))
    return [attack for row in rows for attack in row if attack is not None]


def run_settings(attacks: list[Attack], chosen: list[Setting], num_processes: int) -> list[Result]:
    """Play the attacks that each setting has, those of settings with control groups first.

    Each process plays a part of them, with a host of its own. Settings with and without control groups are not mixed:
    a desktop without one has no score if meanwhile the kernel killed a process for want of memory.
    """
    results: list[Result] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context, initializer=_begin_process) as pool:
        for has_groups in (True, False):
            here = [setting for setting in chosen if setting.has_groups == has_groups]
            parts = [
                pool.submit(_run_part, attacks[part::num_processes], setting)
                for setting in here
                for part in range(num_processes)
            ]
            results += [result for part in parts for result in part.result()]
    return sorted(results, key=lambda result: chosen.index(result.setting))


def _run_part(attacks: list[Attack], setting: Setting) -> list[Result]:
    return asyncio.run(run(attacks, setting))


async def run(attacks: list[Attack], setting: Setting) -> list[Result]:
    """Play the attacks that a setting has, one after the other."""
    results = []
    with control_groups(setting.has_groups):
        async with Host(setting.level) as host:
            for attack in attacks:
                if setting.level not in attack.levels or (attack.needs_groups and not setting.has_groups):
                    continue
                result = await _play_without_doubt(attack, setting, host)
                results.append(result)
                if result.ending != "held":
                    print(f"{result.ending}: {attack.kind}: {attack.name} ({setting}): {result.detail}", flush=True)
    return results


async def _play_without_doubt(attack: Attack, setting: Setting, host: Host) -> Result:
    """Play an attack again if meanwhile the kernel killed a process of this machine for want of memory.

    Without control groups, a desktop that may have been the victim has no score.
    """
    for _ in range(MAX_TRIES):
        before = processes.oom_kills()
        if attack.kills_owner:
            result = await asyncio.to_thread(play_with_killed_owner, attack, setting)
        else:
            result = await play(attack, setting, host)
        if result.ending != "voided" or setting.has_groups or processes.oom_kills() == before:
            break
    return result


def table_of(results: list[Result]) -> list[str]:
    """Return the page's table: an attack per row, a setting per column."""
    columns = list(dict.fromkeys(str(result.setting) for result in results))
    lines = [f"{HEAD} {' | '.join(columns)} |", f"| {' | '.join(['---'] * (3 + len(columns)))} |"]
    played = {result.attack.name for result in results}
    for attack in (attack.name for attack in ATTACKS if attack.name in played):
        found = {str(result.setting): result for result in results if result.attack.name == attack}
        one = next(iter(found.values())).attack
        cells = [found[column].ending if column in found else "-" for column in columns]
        lines.append(f"| {' | '.join([one.name, one.kind, one.must, *cells])} |")
    return lines


def summarize(results: list[Result], thresholds: Thresholds, wanted: int) -> None:
    """Check the results against the thresholds."""
    for setting in dict.fromkeys(result.setting for result in results):
        here = [result for result in results if result.setting == setting]
        ended = Counter(result.ending for result in here)
        counts = ", ".join(f"{ended[name]} {name}" for name in ENDINGS)
        thresholds.check(f"{setting}: {len(here)} attacks", ended["held"] == len(here), counts, "all held")
        slowest = max(result.close_s for result in here)
        thresholds.check(f"{setting}: until nothing is left", slowest < 5.0, f"at most {slowest:.1f} s", "< 5 s")
        thresholds.check(f"{setting}: number of attacks", len(here) >= wanted, f"{len(here)}", f">= {wanted}")
    judged = [result for result in results if result.attack.kind == "judge"]
    longest, largest = max(result.judge_s for result in judged), max(result.cost_mib for result in judged)
    thresholds.check(
        "CPU time for judging a hostile file", longest < MAX_JUDGE_S, f"at most {longest:.1f} s", f"< {MAX_JUDGE_S:g} s"
    )
    thresholds.check("memory for it", largest < MAX_COST_MIB, f"at most {largest:.0f} MiB", f"< {MAX_COST_MIB:g} MiB")


def print_no_logs() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _begin_process() -> None:
    print_no_logs()
    os.setsid()  # owners of desktops do not share a session, whose priority they raise


def main() -> None:
    parser = parser_of(__doc__, "every attack at every level")
    parser.add_argument("--only", metavar="WORD", default="", help="attacks whose kind or name contains a word")
    parser.add_argument(
        "--processes", metavar="N", type=int, default=4, help="processes that play attacks at once (default: 4)"
    )
    parser.add_argument("--own", nargs=4, metavar=("ATTACK", "LEVEL", "GROUPS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    print_no_logs()
    if options.own:
        name, level, groups, folder = options.own
        attack = next(attack for attack in ATTACKS if attack.name == name)
        asyncio.run(own(attack, Setting(level, groups == "1"), Path(folder)))
        return
    print_head()
    attacks = {"smoke": spread(1), "small": spread(5), "full": ATTACKS}[options.size]
    if options.only:
        attacks = [attack for attack in ATTACKS if options.only in f"{attack.kind}: {attack.name}"]
    results = run_settings(attacks, settings(), options.processes)
    print("\n".join(table_of(results)), flush=True)
    thresholds = Thresholds()
    wanted = MIN_ATTACKS if options.size == "full" and not options.only else 1
    if not any(result.attack.kind == "judge" for result in results):
        print("no files against the judge")
        return
    summarize(results, thresholds, wanted)
    thresholds.finish()


if __name__ == "__main__":
    main()
