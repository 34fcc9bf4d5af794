"""The commands `deskhand tasks ...`. Invariant: a file with something wrong in it is named with line and key, and exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

WRONG = 2
Flag = Parameter(negative="")

tasks_app = App(name="tasks", help="The tasks that can be trained and evaluated on.")


@tasks_app.command(name="list")
def list_tasks(*, suite: Literal["basics", "miniwob"] = "basics") -> None:
    """The task families with their screens and applications.

    Parameters
    ----------
    suite
        Deskhand's own families, or those of MiniWoB++ where PyPI's `miniwob` is installed.
    """
    from typing import get_args

    from rich.console import Console
    from rich.table import Table

    from deskhand.tasks.suites import family_registry
    from deskhand.tasks.task import Difficulty

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("family", "tier", "screen", "applications", "what is to be done"):
        table.add_column(name)
    families = family_registry.families(suite).values()
    for family in sorted(families, key=lambda family: (get_args(Difficulty).index(family.difficulty), family.name)):
        first = family.generate(0)
        screen = f"{first.width}x{first.height}"
        table.add_row(family.name, family.difficulty, screen, ", ".join(family.applications), family.summary)
    Console().print(table)
    print(f"{len(families)} families")


@tasks_app.command
def show(task: str, seed: int = 0, /, *, held_out: Annotated[bool, Flag] = False) -> None:
    """One variant of a family, or the task of a file.

    Parameters
    ----------
    task
        A family's name, as `deskhand tasks list` gives it, or a task file.
    seed
        Which variant of the family.
    held_out
        Count the variants of the held-out split instead of the training split.
    """
    from deskhand.tasks.formats import task_files
    from deskhand.tasks.suites import family_registry
    from deskhand.tasks.task import seed_for

    if Path(task).suffix in task_files.SUFFIXES:
        lines = task_files.describe_file(Path(task))
    else:
        lines = task_files.describe_task(
            family_registry.make_task(task, seed_for("held_out" if held_out else "train", seed))
        )
    for name, text in lines:
        print(f"{name:12} {text}")


@tasks_app.command
def lint(paths: list[Path], /) -> None:
    """Check task files: their own YAML, OpenAdapt's YAML, and the JSON of OSWorld and Windows Agent Arena.

    Exits with 2 when something is wrong; a line that begins with "note:" has no consequence.

    Parameters
    ----------
    paths
        Files, or folders of them.
    """
    from deskhand.tasks.formats import task_files

    count = wrong = 0
    for path in task_files.find_task_files(paths):
        problems = task_files.lint_file(path)
        count += 1
        wrong += any(not problem.note for problem in problems)
        for problem in problems:
            print(f"note: {problem}" if problem.note else problem)
    print(f"{count} files, {wrong} with something wrong")
    if wrong:
        raise SystemExit(WRONG)


@tasks_app.command(name="import")
def import_tasks(source: Literal["osworld", "waa"], folder: Path, /, *, out: Path | None = None) -> None:
    """What of a benchmark's tasks can run on this machine, task by task with the reasons, and how many.

    Parameters
    ----------
    source
        Whose tasks they are.
    folder
        A checkout, its folder of task files, or any folder with task files in it.
    out
        A new folder for the task files that can run here, at once or with the files that they download, and an index of all.
    """
    from deskhand.tasks.formats import compatibility
    from deskhand.tasks.formats.requirements import REQUIREMENT_TEXT

    report = compatibility.check_compatibility(source, folder)
    width = max((len(task.name) for task in report.tasks), default=0)
    for task in report.tasks:
        print(f"{task.name:{width}}  {task.verdict:13}  {task.reasons}".rstrip())
    for _, problems in report.corpus.unreadable:
        print("\n".join(f"not loaded: {problem}" for problem in problems))
    print(f"\n{len(report.tasks)} tasks loaded, {len(report.corpus.unreadable)} files not")
    for name, count in report.verdicts().items():
        print(f"{count:5}  {name}")
    print("tasks by what they need (one may need several things)")
    for kind, count in report.kinds().items():
        print(f"{count:5}  {REQUIREMENT_TEXT[kind]}")
    if out is not None:
        print(
            f"{compatibility.copy_supported(report, out)} files written to {out}, {compatibility.INDEX} lists their requirements"
        )
    if report.corpus.unreadable:
        raise SystemExit(WRONG)


@tasks_app.command
def prefetch(
    source: Literal["osworld", "waa"],
    folder: Path,
    /,
    *,
    mirror: Annotated[Path | None, Parameter(name="--from")] = None,
    files: Path | None = None,
) -> None:
    """Fill the cache with the files that tasks download or are compared with, so that guests and judges need no network.

    Exits with 2 when some could not be had; what is there already is not fetched again.

    Parameters
    ----------
    source
        Whose tasks they are.
    folder
        A checkout, its folder of task files, or any folder with task files in it.
    mirror
        Take files from this folder and not from the network: a copy of the repository of files, or the cache folder of OSWorld's
        client.
    files
        The cache; by default $DESKHAND_CACHE_DIR/files or a folder in the user's cache folder.
    """
    from deskhand.tasks.formats import compatibility, file_cache

    report = compatibility.check_compatibility(source, folder)
    cache = file_cache.FileCache(files)
    fetch = file_cache.fetch_from_web if mirror is None else file_cache.fetch_from_folder(mirror)
    counts = {"stored": 0, "cached": 0, "missing": 0}
    for address, became in file_cache.prefetch(cache, (task.loaded.task for task in report.tasks), fetch):
        counts[became] += 1
        if became != "cached":
            print(f"{became:8} {address}")
    print(
        f"{cache.folder}: {counts['stored']} files stored, {counts['cached']} already cached, {counts['missing']} missing"
    )
    if counts["missing"]:
        raise SystemExit(WRONG)
