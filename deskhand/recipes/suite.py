"""Resolve `SuiteConfig` to the tasks that a run trains and evaluates on. Entry point: `load_suite`.

Task files are OSWorld's, Windows Agent Arena's, CUA-Gym's, OpenAdapt's or Deskhand's. Each file is a family with one
variant, named by its folder and stem ("chrome/bb5e4c0d-..."). The held-out files are chosen by the hash of their names,
so that a new file moves few others. Files that cannot run are skipped with a reason. A Python file defines its own
families.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deskhand import registry
from deskhand.config.schema import Config, SuiteConfig
from deskhand.errors import ConfigError
from deskhand.osworld import task as osworld_task
from deskhand.recipes.per_host_evaluator import PerHostEvaluator
from deskhand.tasks.formats import cuagym, openadapt, osworld, python_file, task_files, waa, yaml_schema, yaml_task
from deskhand.tasks.formats.file_cache import FileCache, urls_of
from deskhand.tasks.formats.located_yaml import TaskFileError, load_yaml, require_valid
from deskhand.tasks.formats.probes import Failure, on_local_desktop
from deskhand.tasks.formats.requirements import REQUIREMENT_TEXT, Requirement, Which, find_in_guest, requirements_of
from deskhand.tasks.formats.yaml_task import SUITE as DESKHAND_SUITE
from deskhand.tasks.suites import family_registry
from deskhand.tasks.suites.basics.hd_screen import HEIGHT, WIDTH
from deskhand.tasks.suites.web import hub_task
from deskhand.tasks.task import SPLIT_SIZE, Family, Split, Task, seed_for, split_of

SCREENS = {"osworld": (1920, 1080), "waa": (1920, 1200), "openadapt": (1920, 1200), "cuagym": (WIDTH, HEIGHT)}
"""Screen sizes of the benchmarks' own machines, in pixels."""
BACKENDS = {"waa": ("waa", "server", "sandbox"), "cuagym": ("local",)}
"""Desktop backends that the task files of a format require. A server or a gateway leases such machines to several
runs; whether it has them is known when it replies."""
_MAX_LISTED = 3
DEFAULT_EVAL_FRACTION, DEFAULT_VALIDATION_FRACTION = 0.2, 0.1


@dataclass(frozen=True)
class Suite:
    """Tasks of a run. `make(name, seed)` returns one variant of a family. Both splits list the same families if their
    variants differ by seed, unless whole families are held out."""

    train_tasks: tuple[str, ...]
    eval_tasks: tuple[str, ...]
    """Tasks of the test split; all tasks if the files are not split."""
    make: Callable[[str, int], Task]
    validation_tasks: tuple[str, ...] = ()
    is_parametric: bool = True
    """Whether the variants of a family differ by seed; False for task files."""
    skipped: tuple[str, ...] = ()
    """Skipped files, each with the reason."""

    @property
    def summary(self) -> str:
        """Number of tasks per split, in one line."""
        count = len(self.train_tasks)
        split = f"{count} task{'' if count == 1 else 's'}"
        if self.is_split:
            split += f" (train), {len(self.validation_tasks)} (validation), {len(self.eval_tasks)} (test)"
        skipped = f"; {len(self.skipped)} skipped (see deskhand tasks resolve)" if self.skipped else ""
        return f"suite: {split}{skipped}"

    @property
    def is_split(self) -> bool:
        """Whether no task of the test split is a training task."""
        return self.is_parametric or not set(self.train_tasks) & set(self.eval_tasks)

    def tasks_of(self, split: Split, episodes: int) -> list[Task]:
        """Return the tasks of an evaluation: equally many of each family, at least `episodes` in total. A task file
        counts once, unless `episodes` is 0. Raises `ConfigError` if the split has no tasks.

        Training tasks have seeds from the end of their split, which no run reaches.
        """
        if not episodes:
            return []
        names = {"train": self.train_tasks, "validation": self.validation_tasks, "test": self.eval_tasks}.get(split)
        if self.is_parametric:
            names = self.train_tasks if split in ("train", "validation") else self.eval_tasks
        elif names is None:
            raise ConfigError(f"evaluation.split: task files have no split {split}; use test, validation or train")
        elif not names:
            raise ConfigError(f"evaluation.split: no task file is in the split {split}; raise suite.{split}_fraction")
        each = -(-episodes // len(names)) if self.is_parametric else 1
        first = SPLIT_SIZE - each if split == "train" else 0
        return [self.make(name, seed_for(split, first + index)) for index in range(each) for name in names]


def load_suite(suite: SuiteConfig, backend: str) -> Suite:
    """Return the tasks of a config for a desktop backend. Raises `ConfigError` if a family is unknown, no task of a
    folder can run, or a task named in `families` cannot run."""
    return _loaded(suite.model_dump_json(), backend)


@functools.lru_cache(maxsize=512)
def _loaded(settings: str, backend: str) -> Suite:
    """Cached by the settings as JSON, because a checkout has hundreds of files."""
    suite = SuiteConfig.model_validate_json(settings)
    if suite.path is not None:
        return _python_suite(suite.path, suite) if suite.format == "python" else _file_suite(suite.path, suite, backend)
    if suite.name is not None and not registry.is_builtin("suite", suite.name):
        found = registry.resolve("suite", suite.name)
        expected = "must be a task family or a sequence of task families"
        where = f"suite.name: {suite.name}"
        families = python_file.families_by_name(found() if callable(found) else found, where, expected)
        return _family_suite(families, suite, where)
    prefix = family_registry.PREFIXES.get(suite.name or "", "")
    families = suite.families or (
        tuple(family_registry.families(suite.name or "")) if prefix else family_registry.DEFAULT
    )
    names, excluded, held_out = (
        tuple(full for name in listed for full in family_registry.expand(name, prefix))
        for listed in (families, suite.exclude, suite.held_out_families)
    )
    for name in (*names, *excluded):
        family_registry.make_task(name, 0)
    names = _without(names, excluded, (*names, *excluded), "the suite")
    train, test = _split_families(names, held_out, family_registry.applications_of, "the suite")
    return Suite(train, test, _limited(family_registry.make_task, suite))


def require_oracles(tasks: Iterable[Task]) -> None:
    """Raise `ConfigError` if a task has no oracle."""
    lacking = {task.family: task.oracle_unavailable for task in tasks if task.oracle_unavailable}
    if lacking:
        first, why = next(iter(lacking.items()))
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise ConfigError(
            f"the oracle cannot play {first}{more}: {why}; select other tasks with suite.families, or another policy"
        )


def _python_suite(path: Path, suite: SuiteConfig) -> Suite:
    """The families of a Python file: its `FAMILIES`, or all that `task_family` made."""
    where = f"suite.path: {path}"
    return _family_suite(python_file.load_families(path, "suite.path: cannot import", where), suite, where)


def _family_suite(families: dict[str, Family], suite: SuiteConfig, where: str) -> Suite:
    if unknown := [name for name in suite.families if name not in families]:
        raise ConfigError(f"suite.families: unknown family {unknown[0]!r}; {where} has {', '.join(families)}")
    names = suite.families or tuple(families)
    names = _without(names, suite.exclude, names, where)
    train, test = _split_families(names, suite.held_out_families, lambda name: families[name].applications, where)
    return Suite(train, test, _limited(lambda name, seed: families[name].generate(seed), suite))


def _limited(make: Callable[[str, int], Task], suite: SuiteConfig) -> Callable[[str, int], Task]:
    """Return `make` with `suite.max_episode_steps` in place of the tasks' own, if it is set."""
    steps = suite.max_episode_steps
    return make if steps is None else lambda name, seed: replace(make(name, seed), max_steps=steps)


def _file_suite(folder: Path, suite: SuiteConfig, backend: str) -> Suite:
    file_format = suite.format or ""
    if not folder.is_dir():
        raise ConfigError(f"suite.path: {folder} is not a directory")
    if suite.held_out_families:
        raise ConfigError("suite.held_out_families: task files are held out by suite.eval_fraction; remove it")
    _check_backend(file_format, backend)
    paths = _paths(file_format, folder)
    selected = _without(_selected(paths, suite.families, folder), suite.exclude, paths, str(folder))
    load_file = _loader(file_format, suite, backend)
    tasks: dict[str, Task] = {}
    skipped: list[str] = []
    for name in selected:
        try:
            tasks[name] = replace(load_file(paths[name]), family=name)
        except ConfigError as error:
            reason = _reason(paths[name], error)
            if name in suite.families or (file_format == "deskhand" and isinstance(error, TaskFileError)):
                raise ConfigError(reason) from error
            skipped.append(reason)
    if not tasks:
        first = "; ".join(skipped[:_MAX_LISTED])
        raise ConfigError(
            f"suite.path: none of {len(skipped)} files in {folder} can run on desktop.backend {backend}: {first}"
        )
    test = _held_out(list(tasks), suite.eval_fraction or 0.0, len(tasks))
    trained = [name for name in tasks if name not in test]
    validation = _held_out(trained, suite.validation_fraction or 0.0, len(tasks))
    trained = [name for name in trained if name not in validation]
    prefix = DESKHAND_SUITE if file_format == "deskhand" else file_format

    def make(name: str, seed: int) -> Task:
        variant = f"/{seed}" if split_of(seed) == "train" else ""
        return replace(tasks[name], seed=seed, id=f"{prefix}/{name}{variant}")

    return Suite(
        tuple(trained),
        tuple(test or tasks),
        make,
        tuple(validation),
        is_parametric=False,
        skipped=tuple(skipped),
    )


def _reason(path: Path, error: ConfigError) -> str:
    return str(error) if str(path) in str(error) else f"{path}: {error}"


def _check_backend(file_format: str, backend: str) -> None:
    required = BACKENDS.get(file_format, ())
    if required and backend not in required:
        raise ConfigError(
            f"suite.format {file_format}: requires desktop.backend {' or '.join(required)}, got {backend}"
        )
    if not required and file_format != "openadapt" and backend == "waa":
        raise ConfigError(f"suite.format {file_format}: the tasks are for Linux, but desktop.backend is waa")


def _paths(file_format: str, folder: Path) -> dict[str, Path]:
    """Task files by name."""
    if file_format in ("osworld", "waa"):
        found = osworld.task_files(folder, osworld.FOLDERS if file_format == "osworld" else waa.FOLDERS)
        return {f"{path.parent.name}/{path.stem}": path for path in found if path.name != "index.json"}
    if file_format == cuagym.SUITE:
        return {path.name: path for path in cuagym.task_folders(folder)}
    files = [path for path in task_files.find_task_files([folder]) if path.suffix != ".json"]
    matching = [path for path in files if yaml_schema.is_native(load_yaml(path)) == (file_format == "deskhand")]
    if not matching:
        raise ConfigError(f"suite.path: {folder} contains no task file of format {file_format} (*.yaml)")
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in matching}


def _selected(paths: dict[str, Path], families: Sequence[str], folder: Path) -> list[str]:
    """Names of the tasks and folders in `families`; all if it is empty."""
    if not families:
        return list(paths)
    selected: list[str] = []
    for family in families:
        found = [name for name in paths if _is_in(name, family)]
        if not found:
            close = difflib.get_close_matches(family, [*paths, *{name.split("/")[0] for name in paths}], n=1)
            listed = ", ".join(list(paths)[:_MAX_LISTED])
            hint = f"did you mean {close[0]!r}?" if close else f"available tasks: {listed}, ..."
            raise ConfigError(f"suite.families: {folder} has no task {family!r}; {hint}")
        selected += found
    return list(dict.fromkeys(selected))


def _is_in(name: str, entry: str) -> bool:
    """Whether `entry` is the task `name` or a folder above it."""
    return name == entry or name.startswith(f"{entry}/")


def _without(names: Sequence[str], excluded: Sequence[str], known: Iterable[str], source: str) -> tuple[str, ...]:
    """`names` without `excluded`. Raises `ConfigError` if an entry is unknown, or nothing is left."""
    known = list(known)
    for entry in excluded:
        if not any(_is_in(name, entry) for name in known):
            close = difflib.get_close_matches(entry, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"suite.exclude: {source} has no task {entry!r}{hint}")
    left = tuple(name for name in names if not any(_is_in(name, entry) for entry in excluded))
    if names and not left:
        raise ConfigError(f"suite.exclude: excludes every task of {source}; exclude fewer")
    return left


def _split_families(
    names: tuple[str, ...], held_out: Sequence[str], applications_of: Callable[[str], tuple[str, ...]], source: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Families to train and to test on: the same, unless families or applications are held out. Raises `ConfigError`
    if an entry is unknown, or nothing is left to train on."""
    where, test = "suite.held_out_families", dict[str, None]()
    for entry in held_out:
        found = [name for name in names if _is_in(name, entry) or entry in applications_of(name)]
        if not found:
            raise ConfigError(f"{where}: {source} has no family or application {entry!r}")
        test.update(dict.fromkeys(found))
    train = tuple(name for name in names if name not in test)
    if not train:
        raise ConfigError(f"{where}: holds out every family of {source}; hold out fewer")
    return train, tuple(test) or names


def _held_out(names: Sequence[str], fraction: float, count: int) -> list[str]:
    """Some of `names`, by the hash of each: this fraction of `count`, at least one, and not all."""
    if not fraction or len(names) < 2:
        return []
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return ordered[: min(len(names) - 1, max(1, round(fraction * count)))]


def hold_out_by_default(config: Config) -> Config:
    """Return the settings of a training run, which splits task files unless its settings say how.

    Raises `ConfigError` if the run would evaluate on training tasks without `evaluation.split: train`.
    """
    suite, evaluates = config.suite, config.evaluation.num_episodes > 0
    if suite.path is not None and suite.format != "python" and evaluates and config.evaluation.split != "train":
        validation = DEFAULT_VALIDATION_FRACTION if config.loop.eval_every else 0.0
        fractions = {"eval_fraction": DEFAULT_EVAL_FRACTION, "validation_fraction": validation}
        changes = {key: value for key, value in fractions.items() if getattr(suite, key) is None}
        config = config.model_copy(update={"suite": suite.model_copy(update=changes)})
    found = load_suite(config.suite, config.desktop.backend)
    if evaluates and config.evaluation.split != "train" and not found.is_split:
        raise ConfigError(
            f"suite.eval_fraction: of {len(found.train_tasks)} task file(s) none is held out; raise it, set "
            "evaluation.split to train to evaluate on the training tasks, or evaluation.num_episodes to 0"
        )
    if evaluates:
        found.tasks_of(config.evaluation.split, 1)
        if config.loop.eval_every:
            found.tasks_of(validation_split(config), 1)
    return config


def validation_split(config: Config) -> Split:
    """Return the split that selects the best checkpoint."""
    return "train" if config.evaluation.split == "train" else "validation"


def _loader(file_format: str, suite: SuiteConfig, backend: str) -> Callable[[Path], Task]:
    width, height = suite.screen_size or SCREENS.get(file_format, (0, 0))
    steps = suite.max_episode_steps

    def load_osworld(path: Path) -> Task:
        loaded = osworld.load(path)
        require_valid(loaded.problems)
        task = loaded.task
        if task.infeasible and not suite.include_infeasible:
            raise ConfigError(f"{path}: the task is infeasible, and suite.include_infeasible is false")
        _check_requirements(path, task, backend)
        return osworld_task.task_of(
            task, domain=path.parent.name, size=(width, height), max_steps=steps or osworld_task.MAX_STEPS
        )

    def load_waa(path: Path) -> Task:
        evaluator = functools.partial(PerHostEvaluator, port=suite.evaluator_port)
        loaded = waa.load(path)
        require_valid(loaded.problems)
        return waa.task_of(loaded, evaluator, width, height, steps or waa.DEFAULT_MAX_STEPS)

    def load_openadapt(path: Path) -> Task:
        loaded = openadapt.load(path)
        if backend == "local" and any("open" in step for step in loaded.task.setup or ()):
            raise ConfigError(f"{path}: setup step open needs a machine, desktop.backend is local; launch the program")
        task = openadapt.task_of(loaded, width, height, allow_python=suite.allow_python_checks)
        return replace(task, max_steps=steps) if steps else task

    built = cuagym.built_apps(suite.path) if suite.path is not None and file_format == cuagym.SUITE else {}

    def load_cuagym(path: Path) -> Task:
        task = cuagym.load(path).task
        _require_none(path, cuagym.requirements_of(task, built))
        if not suite.allow_python_checks:
            raise ConfigError(f"{path}: it is set up and judged by Python programs; set suite.allow_python_checks")
        return hub_task.task_of(task, built, (width, height), steps or hub_task.MAX_STEPS)

    def load_deskhand(path: Path) -> Task:
        file = yaml_schema.load(path)
        if backend == "local" and (missing := [program for program in file.programs if shutil.which(program) is None]):
            raise ConfigError(f"{path}: requires {', '.join(missing)}, which is not installed on this machine")
        task = yaml_task.task_of(file, path.parent)
        return replace(task, max_steps=steps) if steps else task

    loaders = {
        "osworld": load_osworld,
        "waa": load_waa,
        "cuagym": load_cuagym,
        "openadapt": load_openadapt,
        "deskhand": load_deskhand,
    }
    return loaders[file_format]


def _check_requirements(path: Path, task: osworld.JsonTask, backend: str) -> None:
    """Raise `ConfigError` if desktops of this backend lack something; OSWorld's own machines have everything but
    files."""
    cache = FileCache()
    missing = [address for address in urls_of(task) if not cache.has(address)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{path}: {missing[0]}{more} is not in {cache.folder}; run deskhand tasks prefetch")
    if backend == "osworld":
        return
    which: Which = find_in_guest if backend == "local" else (lambda program: program)
    fails: Failure = on_local_desktop if backend == "local" else (lambda script: None)
    _require_none(path, [need for need in requirements_of(task, which, fails) if need.kind != "file"])


def _require_none(path: Path, needs: list[Requirement]) -> None:
    """Raise `ConfigError` with the first requirement."""
    if needs:
        raise ConfigError(f"{path}: it {REQUIREMENT_TEXT[needs[0].kind]} ({needs[0].detail})")
