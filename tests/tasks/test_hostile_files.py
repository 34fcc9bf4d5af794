"""Files that were made to stop, crash or slow down the judge score 0, and cost the trainer's process nothing."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import hostile_files
import pytest
from hostile_files import HOSTILE, HOSTILE_PROFILES, MIB
from test_checks import Guest, value_of

from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers, file_problems, guest_files, reader_process, subprocess_call
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats.yaml_schema import CheckNode
from deskhand.tasks.formats.yaml_task import measure
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.suites.basics import office_files, pictures, terminal_files
from deskhand.tasks.task import Task

MAX_COST_MIB = 200


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_call, "CPU_S", 1.0)


def task_of(check: dict[str, Any], folder: Path) -> Task:
    async def setup(_: object) -> None: ...

    node = CheckNode.model_validate(check)
    return Task(id="t/f/0", instruction="do it", setup=setup, check=lambda guest: measure(node, folder, guest))


def reset_peak() -> bool:
    """Let VmHWM start at the memory in use; return whether the kernel can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def memory_mib(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) / 1024


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_file_scores_zero_and_costs_the_trainer_nothing(name: str, tmp_path: Path) -> None:
    kind, make, asked = HOSTILE[name]
    data = make()
    (tmp_path / "a").write_bytes(data)
    task = task_of({kind: {"path": "a", **asked}}, tmp_path)
    can_measure, before_mib = reset_peak(), memory_mib("VmRSS")
    used_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    outcome = await judge(task, Guest(tmp_path), grace_s=0.3)
    assert isinstance(outcome, Scored), outcome
    assert outcome.value == 0.0
    assert outcome.findings[0].read.startswith("a: ")
    # once with the file, for at most one second more than allowed, and once without
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used_s < 2 * (subprocess_call.CPU_S + 1)
    if can_measure:
        assert memory_mib("VmHWM") - before_mib < len(data) / MIB + 40
    assert subprocess_call.MEMORY_MIB * (1 + subprocess_call.MAX_FILES_SHARE) < MAX_COST_MIB


@pytest.mark.parametrize("name", HOSTILE_PROFILES)
async def test_a_hostile_browser_profile_scores_zero(name: str, tmp_path: Path) -> None:
    file, make, asked = HOSTILE_PROFILES[name]
    profile = tmp_path / ".config" / "chromium" / "Default"
    profile.mkdir(parents=True)
    (profile / file).write_bytes(make())
    check = {"browser": asked}
    outcome = await judge(task_of(check, tmp_path), Guest(tmp_path), grace_s=0)
    assert isinstance(outcome, Scored)
    assert outcome.value == 0.0


async def test_many_hostile_files_in_one_check_score_zero_within_any_check_timeout(tmp_path: Path) -> None:
    parts = []
    for number in range(2):
        (tmp_path / f"a{number}").write_bytes(b"a" * (50 + number) + b"!")
        parts.append({"text": {"path": f"a{number}", "matches": "(a+)+"}})
    outcome = await judge(task_of({"all": parts}, tmp_path), Guest(tmp_path), grace_s=0, timeout_s=1.5)
    assert isinstance(outcome, Scored), "time in the subprocess does not count against the check"
    assert outcome.value == 0.0


async def test_hostile_results_of_the_bundled_families_are_wrong_answers() -> None:
    for wreck in (hostile_files.with_wrong_deflate, hostile_files.encrypted, hostile_files.with_entities):
        assert await office_files.read_workbook(wreck(hostile_files.SHEET)) is None, wreck
        assert await office_files.read_document(wreck(hostile_files.DOCUMENT)) is None, wreck
        assert await office_files.read_presentation(wreck(hostile_files.SLIDES)) is None, wreck
    assert await office_files.read_presentation(hostile_files.zip_bomb(hostile_files.SLIDES, 65 * 2**20)) is None
    for data in (hostile_files.png_head(8192, 8192, 16), hostile_files.png_head(16, 16), b"noise", b""):
        assert await pictures.open_picture(data) is None
    assert await terminal_files.members_of(hostile_files.tar_bomb(2_000_000)) is None


async def test_honest_large_files_are_within_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rows = [[f"item {number}", float(number)] for number in range(20_000)]
    (tmp_path / "a").write_bytes(hostile_files.packed.xlsx(A=rows))
    assert (await value_of({"sheet": {"path": "a", "rows": rows}}, tmp_path)).value == 1.0
    for kind, size in {"PNG": (3840, 2160), "JPEG": (3840, 2160), "BMP": (3840, 2160), "WEBP": (2560, 1440)}.items():
        (tmp_path / "a").write_bytes(hostile_files.plain_image(*size, kind))
        like = {"path": "a", "size": [*size], "like": "a"}
        assert (await value_of({"image": like}, tmp_path)).value == 1.0, kind
    values = ", ".join(f"({number}, '{'x' * 400}')" for number in range(20_000))
    (tmp_path / "a").write_bytes(hostile_files.database("create table t (n, x)", f"insert into t values {values}"))
    asked = {"path": "a", "query": "select count(*), max(n) from t", "rows": [[20_000, 19_999]]}
    assert (await value_of({"sqlite": asked}, tmp_path)).value == 1.0
    (tmp_path / "a").write_text("a line of text\n" * 600_000)
    assert (await value_of({"text": {"path": "a", "lacks": ["b line"]}}, tmp_path)).value == 1.0


def test_what_the_host_is_to_blame_for_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    call = subprocess_call.call_in_subprocess
    greedy = "def f(files, arguments): return len(bytes(10**9))"
    with pytest.raises(EvaluatorError, match="needs more than 160 MiB of memory to read, with empty files too"):
        call(reader_process.call_user_function, b"1", ["a"], [], greedy, "judge.py", "f", None)
    with pytest.raises(EvaluatorError, match="reference image"):
        call(file_problems.image_problem, hostile_files.plain_image(8, 8), b"no image", {"size": None})
    monkeypatch.setattr(subprocess_call, "WALL_S", 0.01)
    monkeypatch.setattr(subprocess_call, "CPU_S", 0.005)
    with pytest.raises(EvaluatorError, match="overloaded machine"):
        call(document_readers.read_json, b"[1]")


def test_the_size_of_an_image_is_checked_before_it_is_decoded() -> None:
    with pytest.raises(InvalidDocument, match="9000x9000 pixels; maximum: 16000000"):
        document_readers.compare_images(hostile_files.png_head(9000, 9000), b"")


JUDGE = """
def slow(files, arguments):
    total = 0
    for number in range(int(files["a"] or 0)):
        total += number
    return total >= 0
"""


@pytest.mark.parametrize(("said", "expected"), [("10", 1.0), ("9" * 18, 0.0), ("none", None)])
async def test_a_file_that_keeps_an_author_s_function_busy_scores_zero(
    said: str, expected: float | None, tmp_path: Path
) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "a").write_text(said)
    check = {"python": {"file": "judge.py", "function": "slow", "reads": ["a"], "timeout_s": 1}}
    outcome = await judge(task_of(check, tmp_path), Guest(tmp_path), grace_s=0)
    if expected is None:
        assert isinstance(outcome, Errored), "its exceptions are the author's"
    else:
        assert isinstance(outcome, Scored)
        assert outcome.value == expected


class Full:
    """A guest with 60 files of 3 MiB in each folder."""

    num_read = 0

    async def listdir(self, path: str) -> list[str]:
        return [str(number) for number in range(60)]

    async def pull(self, path: str) -> bytes:
        self.num_read += 1
        return b"\xf0\x9f\x98\x80" + b"a" * (3 * MIB)


async def test_a_folder_of_large_files_is_not_read_whole() -> None:
    guest = Full()
    found = await guest_files.read_folder(guest, "Downloads")  # type: ignore[arg-type]
    assert len(found) == 60
    assert sum(len(data) for data in found.values() if data is not None) <= guest_files.MAX_BYTES + 5 * MIB
    assert guest.num_read < 10


async def test_a_huge_text_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = Full()
    assert await guest_files.read_text(guest, "a") is not None  # type: ignore[arg-type]
    monkeypatch.setattr(guest_files, "MAX_BYTES", 4 * MIB)
    assert await guest_files.read_text(guest, "a") is None  # type: ignore[arg-type]
