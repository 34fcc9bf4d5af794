"""`make gpu` at its smallest size on the processor: every part has its page, and a failure does not end the rest.

`DESKHAND_TEST_FULL=1` also runs the parts that repeat another one with other settings.

The pages of LoRA and of full weights: the benchmark plays, trains, publishes, and its peak is the planner's.
"""

from __future__ import annotations

import re

import pytest
from bundled_weights import needs_weights
from full import FULL

from benchmarks import evidence, gpu_pages

REPEATED: set[str] = set() if FULL else {"gpu_exactness_float32", "gpu_exactness_random", "gpu_learning"}
EXPECTED = {
    "gpu_exactness": r"tiny in bfloat16 on cpu[^$]*against float32: cosine",
    "gpu_exactness_float32": r"tiny in float32 on cpu",
    "gpu_exactness_random": r"random weights in bfloat16 on cpu",
    "gpu_lora": r"episodes/min: ",
    "gpu_full": r"episodes/min: ",
    "gpu_step": r"\| rollout_wait \| \d+\.\d+ \| \d+\.\d %",
    "gpu_learning": r"warm start: \d+ episodes of the oracle, 4 updates[^$]*\| train_step \|",
    "gpu_options": r"CUDA graphs[^$]*skipped: no CUDA device",
}


@needs_weights
def test_the_rehearsal_on_the_processor_writes_the_page_of_every_part(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert {part.page for part in gpu_pages.PARTS} == set(EXPECTED)
    parts = [part for part in gpu_pages.PARTS if part.page not in REPEATED]
    gpu_pages.run_parts(parts, tmp_path, 60, smoke=True)
    for name in (part.page for part in parts):
        pattern, page = EXPECTED[name], (tmp_path / f"{name}.md").read_text()
        assert page.startswith(f"# {name}\n\n- command: python -m benchmarks."), page
        assert "Traceback" not in page, page
        assert re.search(pattern, page), page
    for mode in ("lora", "full"):
        _check_device_page(mode, (tmp_path / f"gpu_{mode}.md").read_text())
    assert "left out" not in capsys.readouterr().out


def _check_device_page(mode: str, page: str) -> None:
    assert "- exit code: 0" in page, page
    assert "no GPU is used" in page
    assert re.search(r"episodes/min: [1-9]\d*\.\d \(4 of 4", page), page
    weights = rf"^{mode}: 0\.[1-9]\d*e6 weights, 0\.\d*[1-9]\d*e6 trained"
    assert re.search(weights, page, re.MULTILINE), "few are counted in millions"
    assert re.search(r"^weights +[1-9]\.\d\d MiB", page, re.MULTILINE), page
    for name in ("sampled", "trained", "MFU", "publish", "sum, device"):
        assert re.search(rf"^{name}:? ", page, re.MULTILINE), name
    assert re.search(rf"^pass  {mode}: measured peak", page, re.MULTILINE), page
    assert "all thresholds met" in page


class Program(gpu_pages.Part):
    """A part that runs the Python program in `options`."""

    def words(self, minutes: float, *, smoke: bool) -> list[str]:
        return ["-c", self.options]


def test_failed_and_late_parts_are_named_and_the_rest_is_run(tmp_path, capsys):
    programs = {
        "broken": ("raise ValueError('no such kernel')", 1.0),
        "late": ("import time; print('started', flush=True); time.sleep(600)", 0.05),
        "fine": ("print('42 ms')", 1.0),
    }
    parts = [Program(name, name, "", program, 0.01, limit) for name, (program, limit) in programs.items()]
    too_long = Program("never", "never", "", "print('no')", 100, 200)
    failed = gpu_pages.run_parts([parts[0], parts[1], too_long, parts[2]], tmp_path, 5, smoke=True)
    assert failed == ["broken", "late"]
    assert "ValueError: no such kernel" in (tmp_path / "broken.md").read_text()
    late = (tmp_path / "late.md").read_text()
    assert re.search(r"exit code: -?\d+, stopped after 3 s", late), late
    assert "started" in late
    assert "42 ms" in (tmp_path / "fine.md").read_text()
    assert not (tmp_path / "never.md").exists()
    assert "left out: never" in capsys.readouterr().out


def test_without_a_gpu_the_command_names_the_rehearsal(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_pages"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu_pages.main()
    assert ended.value.code == 2
    assert "--smoke" in capsys.readouterr().err


def test_the_command_is_not_a_part_of_itself_or_of_all_evidence():
    names = evidence.names()
    assert "gpu_pages" not in names
    assert {part.benchmark for part in gpu_pages.PARTS} <= set(names)
