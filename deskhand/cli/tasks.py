"""`deskhand tasks`: families, task files and benchmark corpora."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from deskhand.cli.common import USER_ERROR, Overrides, Profile, load_settings
from deskhand.cli.output import Json, print_columns, print_json

if TYPE_CHECKING:
    from deskhand.tasks.formats.compatibility import ImportReport

SuiteName = Literal["basics", "web", "miniwob"]
SplitName = Literal["train", "validation", "test", "test_instructions"]

tasks_app = App(name="tasks", help="Tasks for training and evaluation.")


@tasks_app.command(name="list")
def list_tasks(*, suite: SuiteName = "basics", as_json: Json = False) -> None:
    """List the task families of a bundled suite.

    Parameters
    ----------
    suite
        Deskhand's own families (basics, web), or MiniWoB++ (requires the package miniwob).
    """
    from typing import get_args

    from deskhand.tasks.suites import family_registry
    from deskhand.tasks.task import Difficulty

    families = family_registry.families(suite).values()
    rows = []
    for family in sorted(families, key=lambda family: (get_args(Difficulty).index(family.difficulty), family.name)):
        first = family.generate(0)
        screen = f"{first.width}x{first.height}"
        abilities, applications = ", ".join(family.abilities), ", ".join(family.applications)
        rows.append((family.name, family.difficulty, screen, applications, family.summary, abilities))
    head = ("family", "difficulty", "screen", "applications", "description", "abilities")
    print_columns(head, rows, as_json=as_json)
    if not as_json:
        print(f"{len(families)} families")


@tasks_app.command
def stats(
    *, suite: SuiteName = "basics", by_family: bool = False, measured: Path | None = None, as_json: Json = False
) -> None:
    """Count the families of a bundled suite by ability, application, difficulty, measured success, end and step limit.

    Parameters
    ----------
    suite
        Deskhand's own families (basics, web), or MiniWoB++ (requires the package miniwob).
    by_family
        List the measured success of each family instead: solved of played episodes by policy.
    measured
        File of deskhand tasks measure (default: the one of the installed package).
    """
    from deskhand.tasks.difficulty import STORED, load_measured
    from deskhand.tasks.suites import family_registry, family_stats

    families = family_registry.families(suite).values()
    counts = load_measured(measured or STORED)
    if by_family:
        head, table = family_stats.measured_table(families, counts)
        print_columns(head, table, as_json=as_json)
        return
    rows = family_stats.count_families(families, counts)
    if as_json:
        print_json([{"property": name, "value": value, "families": count} for name, value, count in rows])
        return
    print_columns(("property", "value", "families"), [(name, value, str(count)) for name, value, count in rows])
    print(f"{len(families)} families")


@tasks_app.command
def show(task: str, seed: int = 0, /, *, split: SplitName = "train", as_json: Json = False) -> None:
    """Show one variant of a family, or a task file.

    Parameters
    ----------
    task
        Family from `deskhand tasks list`, task file, or Python file: FILE.py or FILE.py:FAMILY.
    seed
        Variant of the family.
    split
        Split of the variant.
    """
    from deskhand.tasks.formats import python_file, task_files
    from deskhand.tasks.suites import family_registry
    from deskhand.tasks.task import seed_for

    variant = seed_for(split, seed)
    if python_file.names_python_file(task):
        _, families = python_file.select_families(task)
        shown = [task_files.describe_family(family, variant) for family in families]
    elif Path(task).suffix in task_files.SUFFIXES:
        shown = [task_files.describe_file(Path(task))]
    else:
        shown = [task_files.describe_task(family_registry.make_task(task, variant))]
    if as_json:
        print_json([[{"name": name, "value": text} for name, text in lines] for lines in shown])
        return
    print("\n\n".join("\n".join(f"{name:12} {text}" for name, text in lines) for lines in shown))


@tasks_app.command
def lint(paths: list[Path], /, *, as_json: Json = False) -> None:
    """Check task files: Deskhand's and OpenAdapt's YAML, OSWorld's and Windows Agent Arena's JSON, families in Python.

    Exits with 2 if a file is invalid; notes do not count.

    Parameters
    ----------
    paths
        Files or folders; FILE.py or FILE.py:FAMILY for families in Python, which are not searched in folders.
    """
    from deskhand.tasks.formats import python_file, task_files

    suites = [str(path) for path in paths if python_file.names_python_file(str(path))]
    files = task_files.find_task_files([path for path in paths if str(path) not in suites])
    found = {
        str(path): python_file.lint_families(path) if isinstance(path, str) else task_files.lint_file(path)
        for path in (*suites, *files)
    }
    wrong = sum(any(not problem.note for problem in problems) for problems in found.values())
    if as_json:
        print_json([{"file": path, "problems": problems} for path, problems in found.items()])
    else:
        for problem in (problem for problems in found.values() for problem in problems):
            print(f"note: {problem}" if problem.note else problem)
        print(f"{len(found)} files, {wrong} invalid")
    if wrong:
        raise SystemExit(USER_ERROR)


@tasks_app.command
def check_corpus(
    source: Literal["osworld", "waa", "cuagym"], folder: Path, /, *, copy_to: Path | None = None, as_json: Json = False
) -> None:
    """Report which of a benchmark's tasks can run on this machine, and why the others cannot.

    Parameters
    ----------
    source
        Benchmark.
    folder
        Checkout, or folder with task files; for CUA-Gym with its bundles, and the built hub in `hub/`.
    copy_to
        New folder for the task files that can run here (some after a prefetch), and an index of all.
    """
    from deskhand.tasks.formats import compatibility

    report = compatibility.check_compatibility(source, folder)
    if as_json:
        if copy_to is not None:
            compatibility.copy_supported(report, copy_to)
        print_json(report.data())
    else:
        _print_compatibility(report, copy_to)
    if report.corpus.unreadable:
        raise SystemExit(USER_ERROR)


def _print_compatibility(report: ImportReport, copy_to: Path | None) -> None:
    from deskhand.tasks.formats import compatibility
    from deskhand.tasks.formats.requirements import REQUIREMENT_TEXT

    width = max((len(task.name) for task in report.tasks), default=0)
    for task in report.tasks:
        print(f"{task.name:{width}}  {task.verdict:13}  {task.reasons}".rstrip())
    for _, problems in report.corpus.unreadable:
        print("\n".join(f"invalid: {problem}" for problem in problems))
    print(f"\n{len(report.tasks)} tasks loaded, {len(report.corpus.unreadable)} invalid files")
    for name, count in report.verdicts().items():
        print(f"{count:5}  {name}")
    print("tasks by requirement (a task may have several)")
    for kind, count in report.kinds().items():
        print(f"{count:5}  {REQUIREMENT_TEXT[kind]}")
    if copy_to is not None:
        count = compatibility.copy_supported(report, copy_to)
        print(f"{count} files written to {copy_to}; {compatibility.INDEX} lists their requirements")


@tasks_app.command
def prefetch(
    source: Literal["osworld", "waa"],
    folder: Path,
    /,
    *,
    mirror: Annotated[Path | None, Parameter(name="--from")] = None,
    cache_dir: Path | None = None,
    as_json: Json = False,
) -> None:
    """Download the files that tasks and their checks use into the cache.

    Exits with 2 if some are missing; cached files are not fetched again.

    Parameters
    ----------
    source
        Benchmark.
    folder
        Checkout, or folder with task files.
    mirror
        Copy files from this folder instead of the network: a copy of the file repository, or OSWorld's cache folder.
    cache_dir
        Cache folder (default: $DESKHAND_CACHE_DIR/files, or the user's cache folder).
    """
    from deskhand.tasks.formats import compatibility, file_cache

    report = compatibility.check_compatibility(source, folder)
    cache = file_cache.FileCache(cache_dir)
    fetch = file_cache.fetch_from_web if mirror is None else file_cache.fetch_from_folder(mirror)
    counts = {"stored": 0, "cached": 0, "missing": 0}
    files: list[dict[str, str]] = []
    for address, became in file_cache.prefetch(cache, (task.loaded.task for task in report.tasks), fetch):
        counts[became] += 1
        files.append({"url": address, "state": became})
        if became != "cached" and not as_json:
            print(f"{became:8} {address}")
    summary = f"{counts['stored']} files stored, {counts['cached']} already cached, {counts['missing']} missing"
    if as_json:
        print_json({"folder": cache.folder, "counts": counts, "files": files})
    else:
        print(f"{cache.folder}: {summary}")
    if counts["missing"]:
        raise SystemExit(USER_ERROR)


@tasks_app.command
def resolve(
    config: Path | None = None, /, *, profile: Profile = None, overrides: Overrides = None, as_json: Json = False
) -> None:
    """List the tasks that a config trains and evaluates on, and the skipped files with reasons.

    Parameters
    ----------
    config
        Config file (default: settings from --set alone).
    """
    from deskhand.recipes.suite import load_suite

    settings = load_settings(config, overrides, profile)
    suite = load_suite(settings.suite, settings.desktop.backend)
    splits = {"train": suite.train_tasks, "validation": suite.validation_tasks, "test": suite.eval_tasks}
    rows = [
        (name, suite.make(name, 0), [split for split, known in splits.items() if name in known])
        for name in dict.fromkeys(name for known in splits.values() for name in known)
    ]
    if as_json:
        tasks = [
            {
                "name": name,
                "screen": [task.width, task.height],
                "max_steps": task.max_steps,
                "splits": chosen,
                "no_oracle": task.oracle_unavailable or None,
            }
            for name, task, chosen in rows
        ]
        print_json({"tasks": tasks, "skipped": suite.skipped, "summary": suite.summary})
        return
    for name, task, chosen in rows:
        more = f"; {task.oracle_unavailable}" if task.oracle_unavailable else ""
        print(f"{name}  {task.width}x{task.height}  max {task.max_steps} steps  {' and '.join(chosen)}{more}")
    print("\n".join([*(f"skipped: {line}" for line in suite.skipped), suite.summary]))
