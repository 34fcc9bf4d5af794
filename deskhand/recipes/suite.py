"""The tasks of a run: those of a suite in the box, or of files. Invariant: a task that is not played is named with its file and the
reason before anything starts, and what is held out is never trained on.

Files are OSWorld's, Windows Agent Arena's, OpenAdapt's or our own YAML. Each is a family of one variant, named as its folder and
itself ("chrome/bb5e4c0d-..."). What is held out of them is a share by the hash of their names, so that a file that is added moves
few others. A Python file has families of its own.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from deskhand.config.schema import SuiteConfig
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.osworld import task as osworld_task
from deskhand.tasks.end_state import EndState
from deskhand.tasks.formats import openadapt_task, osworld, task_files, waa, waa_task, yaml_schema
from deskhand.tasks.formats.file_cache import FileCache, addresses_of
from deskhand.tasks.formats.located_yaml import TaskFileError, load_yaml
from deskhand.tasks.formats.requirements import REQUIREMENT_TEXT, Which, requirements_of
from deskhand.tasks.formats.yaml_task import task_of as native_task_of
from deskhand.tasks.suites import family_registry, miniwob
from deskhand.tasks.task import Family, StagedDesktopLike, Task, seed_for, split_of

SCREENS = {"osworld": (1920, 1080), "waa": (1920, 1200), "openadapt": (1920, 1200)}
"""Of the benchmarks' own machines, in pixels."""
MACHINES = {"osworld": "osworld", "waa": "waa", "openadapt": "osworld or waa"}
_SHOWN = 3


@dataclass(frozen=True)
class Suite:
    """`make(name, seed)` is a variant of one of the `trained` or `held_out` families, which are the same where variants differ."""

    train_tasks: tuple[str, ...]
    eval_tasks: tuple[str, ...]
    make: Callable[[str, int], Task]
    is_parametric: bool = True
    """Whether the seeds of a family differ; the tasks of files are what they are."""
    skipped: tuple[str, ...] = ()
    """Files that are not played here, each with the reason."""

    @property
    def summary(self) -> str:
        """How many tasks there are, of what."""
        shared = set(self.train_tasks) & set(self.eval_tasks)
        split = "trained and evaluated on" if shared else f"trained on, {len(self.eval_tasks)} held out"
        left = f"; {len(self.skipped)} left out (deskhand tasks suite says why)" if self.skipped else ""
        return f"suite: {len(self.train_tasks)} tasks {split}{left}"

    def held_out_tasks(self, episodes: int) -> list[Task]:
        """The tasks of an evaluation: as many of each family, together at least `episodes`; a file's task once, whatever `episodes`
        is but 0."""
        each = -(-episodes // len(self.eval_tasks)) if self.is_parametric else min(1, episodes)
        return [self.make(name, seed_for("held_out", index)) for index in range(each) for name in self.eval_tasks]


def load_suite(suite: SuiteConfig, backend: str) -> Suite:
    """The suite that the settings name, on desktops of a kind. Raises `ConfigError` for an unknown family, a folder of which no
    task can be played, and a named task that cannot."""
    return _loaded(suite.model_dump_json(), backend)


@functools.lru_cache(maxsize=8)
def _loaded(settings: str, backend: str) -> Suite:
    """Once for each section of settings, which is JSON here: a checkout has hundreds of files."""
    suite = SuiteConfig.model_validate_json(settings)
    if suite.python is not None:
        return _of_python(suite.python, suite)
    if suite.files is not None:
        return _of_files(suite, backend)
    names, without = (
        suite.families or (miniwob.names() if suite.name == miniwob.SUITE else family_registry.DEFAULT),
        suite.exclude,
    )
    if suite.name == miniwob.SUITE:
        names, without = (
            tuple(name if name.startswith(miniwob.PREFIX) else f"{miniwob.PREFIX}{name}" for name in given)
            for given in (names, without)
        )
    for name in (*names, *without):
        family_registry.make_task(name, 0)
    names = _left(names, without, (*names, *without), "the suite")
    return Suite(names, names, family_registry.make_task)


def require_oracles(tasks: Iterable[Task]) -> None:
    """Raise `ConfigError` when a task has no oracle."""
    lacking = {task.family: task.oracle_unavailable for task in tasks if task.oracle_unavailable}
    if lacking:
        first, why = next(iter(lacking.items()))
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise ConfigError(
            f"the oracle cannot play {first}{more}: {why}; name other tasks under suite.families, or another policy"
        )


def _of_python(path: Path, suite: SuiteConfig) -> Suite:
    """The families of a Python file, which is run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"suite.python: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            f"suite.python: {path} raised {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    found = getattr(module, "FAMILIES", ())
    if not found or not all(isinstance(family, Family) for family in found):
        raise ConfigError(f"suite.python: {path} has no FAMILIES, a sequence of deskhand.tasks.task.Family")
    families = {family.name: family for family in found}
    if unknown := [name for name in suite.families if name not in families]:
        raise ConfigError(f"suite.families: {path} has no family {unknown[0]!r}; it has {', '.join(families)}")
    names = suite.families or tuple(families)
    names = _left(names, suite.exclude, names, str(path))
    return Suite(names, names, lambda name, seed: families[name].generate(seed))


def _of_files(suite: SuiteConfig, kind: str) -> Suite:
    source, folder = suite.files or ("", Path())
    if not folder.is_dir():
        raise ConfigError(f"suite.{source}: {folder} is no folder")
    _fits(source, kind)
    paths = _paths(source, folder)
    chosen = _left(_chosen(paths, suite.families, folder), suite.exclude, paths, str(folder))
    make_one = _maker(source, suite, kind)
    tasks: dict[str, Task] = {}
    left_out: list[str] = []
    for name in chosen:
        try:
            tasks[name] = replace(make_one(paths[name]), family=name)
        except ConfigError as error:
            reason = _reason(paths[name], error)
            if name in suite.families or (source == "native" and isinstance(error, TaskFileError)):
                raise ConfigError(reason) from error
            left_out.append(reason)
    if not tasks:
        told = "; ".join(left_out[:_SHOWN])
        raise ConfigError(
            f"suite.{source}: none of {len(left_out)} files in {folder} can be played on {kind} desktops: {told}"
        )
    held_out = _share(list(tasks), suite.eval_fraction)
    trained = [name for name in tasks if name not in held_out]

    def make(name: str, seed: int) -> Task:
        task = tasks[name]
        repeated = f"/{seed}" if split_of(seed) == "train" else ""
        return replace(task, seed=seed, id=f"{source}/{name}{repeated}")

    return Suite(tuple(trained), tuple(held_out or tasks), make, is_parametric=False, skipped=tuple(left_out))


def _reason(path: Path, error: ConfigError) -> str:
    return str(error) if str(path) in str(error) else f"{path}: {error}"


def _fits(source: str, kind: str) -> None:
    if source in ("waa", "openadapt") and kind not in MACHINES[source]:
        raise ConfigError(
            f"suite.{source}: its tasks are for machines; set desktop.backend to {MACHINES[source]}, which is {kind}"
        )
    if source in ("osworld", "native") and kind == "waa":
        raise ConfigError(f"suite.{source}: its tasks are for Linux; desktop.backend is waa")


def _paths(source: str, folder: Path) -> dict[str, Path]:
    """Task files by name."""
    if source in ("osworld", "waa"):
        found = osworld.task_files(folder, osworld.FOLDERS if source == "osworld" else waa.FOLDERS)
        return {f"{path.parent.name}/{path.stem}": path for path in found if path.name != "index.json"}
    yaml = [path for path in task_files.below([folder]) if path.suffix != ".json"]
    mine = [path for path in yaml if yaml_schema.is_native(load_yaml(path)) == (source == "native")]
    if not mine:
        raise ConfigError(f"suite.{source}: {folder} has no file of this kind (*.yaml)")
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in mine}


def _chosen(paths: dict[str, Path], families: Sequence[str], folder: Path) -> list[str]:
    """The names that `families` takes: a task's own, or that of the folder that it is in; all when it is empty."""
    if not families:
        return list(paths)
    taken: list[str] = []
    for wanted in families:
        found = [name for name in paths if name == wanted or name.startswith(f"{wanted}/")]
        if not found:
            close = difflib.get_close_matches(wanted, [*paths, *{name.split("/")[0] for name in paths}], n=1)
            mend = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(list(paths)[:_SHOWN])}, ..."
            raise ConfigError(f"suite.families: {folder} has no task {wanted!r}; {mend}")
        taken += found
    return list(dict.fromkeys(taken))


def _left(names: Sequence[str], without: Sequence[str], known: Iterable[str], where: str) -> tuple[str, ...]:
    """`names` less those that `without` takes out. Raises `ConfigError` when it names what is not `known`, or leaves nothing."""

    def takes(each: str, name: str) -> bool:
        return name == each or name.startswith(f"{each}/")

    known = list(known)
    for each in without:
        if not any(takes(each, name) for name in known):
            close = difflib.get_close_matches(each, known, n=1)
            raise ConfigError(
                f"suite.exclude: {where} has no task {each!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
    left = tuple(name for name in names if not any(takes(each, name) for each in without))
    if names and not left:
        raise ConfigError(f"suite.exclude leaves no task of {where}; leave fewer out")
    return left


def _share(names: Sequence[str], share: float) -> list[str]:
    """So much of `names`, by the hash of each: at least one, and not all."""
    if not share or len(names) < 2:
        return []
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return ordered[: min(len(names) - 1, max(1, round(share * len(names))))]


def _maker(source: str, suite: SuiteConfig, kind: str) -> Callable[[Path], Task]:
    width, height = suite.screen_size or SCREENS.get(source, (0, 0))
    steps = suite.max_episode_steps

    def of_osworld(path: Path) -> Task:
        task = osworld.load(path).task
        if task.infeasible and not suite.include_infeasible:
            raise ConfigError(f"{path}: it is solved by saying that it cannot be done (suite.include_infeasible)")
        _runs(path, task, kind)
        return osworld_task.task_of(
            task, domain=path.parent.name, size=(width, height), max_steps=steps or osworld_task.MAX_STEPS
        )

    def of_waa(path: Path) -> Task:
        beside = functools.partial(PerHostEvaluator, port=suite.evaluator_port)
        return waa_task.task_of(waa.load(path), beside, width, height, steps or waa_task.STEPS)

    def of_openadapt(path: Path) -> Task:
        task = openadapt_task.load_task(path, width, height)
        return replace(task, max_steps=steps) if steps else task

    def of_native(path: Path) -> Task:
        file = yaml_schema.load(path)
        if kind == "embedded" and (lacking := [each for each in file.programs if shutil.which(each) is None]):
            raise ConfigError(f"{path}: it needs {', '.join(lacking)}, which is not installed on this machine")
        task = native_task_of(file, path.parent)
        return replace(task, max_steps=steps) if steps else task

    return {"osworld": of_osworld, "waa": of_waa, "openadapt": of_openadapt, "native": of_native}[source]


def _runs(path: Path, task: osworld.JsonTask, kind: str) -> None:
    """Raise `ConfigError` when a task needs what desktops of this kind have not; OSWorld's own machines have it."""
    cache = FileCache()
    absent = [address for address in addresses_of(task) if not cache.has(address)]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ConfigError(f"{path}: {absent[0]}{more} is not in {cache.folder}; fill it with deskhand tasks prefetch")
    if kind == "osworld":
        return
    which: Which = shutil.which if kind == "embedded" else (lambda program: program)
    needs = [need for need in requirements_of(task, which) if need.kind != "file"]
    if needs:
        raise ConfigError(f"{path}: it {REQUIREMENT_TEXT[needs[0].kind]} ({needs[0].detail})")


class PerHostEvaluator:
    """The evaluate server of the machine that a task is played on: on its host, at `port`. Fulfils `waa_task.Evaluator`; a
    connection lasts for one request, in whatever event loop there is."""

    def __init__(self, desktop: StagedDesktopLike, port: int) -> None:
        if isinstance(desktop, EndState):
            raise EvaluatorError(
                "WAA's evaluate server reads the live machine, so a state that was kept of it cannot be judged"
            )
        if not isinstance(desktop, OsworldDesktop):
            raise InfrastructureError(
                "only a machine of Windows Agent Arena has an evaluate server; set desktop.backend to waa"
            )
        parts = urlsplit(desktop.link.address)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._address = urlunsplit((parts.scheme, f"{host}:{port}", "", "", ""))
        self._timeouts = desktop.link.timeouts

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[WaaEvaluatorClient]:
        link = RetryingClient(self._address, timeouts=self._timeouts, parks=False)
        try:
            yield WaaEvaluatorClient(link)
        finally:
            await link.close()

    async def setup(self, config: list[dict[str, Any]]) -> None:
        async with self._open() as server:
            await server.setup(config)

    async def evaluate(self, task: dict[str, Any]) -> tuple[float, str]:
        async with self._open() as server:
            return await server.evaluate(task)
