"""The estimated memory of whole training runs is within 25 % of what their processes really took.

Runs of the bundled policy on local desktops, in processes of their own. Sequences fill the micro-batches, and prompts
and screenshots the caches, as in longer runs: for few episodes both have to be small.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deskhand.cli.main import app

MIB = 1 << 20
TOLERANCE = 0.25
RUNS: dict[str, list[str]] = {
    "grpo, all weights": ["policy.max_tokens_per_mb=1024", "policy.train_vision=true"],
    "grpo, lora": ["policy.lora.rank=16", "policy.max_tokens_per_mb=2048"],
    "ppo": [
        "trainer.algorithm=ppo",
        "policy.max_tokens_per_mb=1024",
    ],
}
SETTINGS = [
    "loop.total_steps=2",
    "loop.groups_per_step=2",
    "loop.group_size=6",
    "loop.eval_every=0",
    "evaluation.num_episodes=0",
    "suite.families=[terminal_run]",
    "engine.prefix_cache_tokens=4096",
    "engine.image_cache_tokens=2048",
]


MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def trained(folder: Path, settings: list[str]) -> float:
    """Train in a process of its own; return its peak of resident memory in MiB, as the kernel counts it.

    `ru_maxrss` of a process begins with the memory of the one that started it, so a small one does.
    """
    options = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    words = [sys.executable, "-m", "deskhand", "train", "tiny_cpu", str(folder), *options]
    with (folder.parent / "output.txt").open("w") as output:
        start = [sys.executable, "-I", "-S", "-c", MEASURE]
        done = subprocess.run([*start, *words], stdout=subprocess.PIPE, stderr=output, check=False)
    assert done.returncode == 0, (folder.parent / "output.txt").read_text()
    return int(done.stdout) * 1024 / MIB


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        app(["estimate", *words])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS)
def test_the_memory_of_a_run_is_within_a_quarter_of_its_estimate(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    peak_mib = trained(folder, RUNS[name])
    shown = json.loads(printed(capsys, str(folder), "--json"))
    compared = {each["name"]: each for each in shown["compared"]}
    found = compared["peak of the process"]
    with capsys.disabled():
        print(f"\n{name}: {found['estimated']:.0f} MiB estimated, {peak_mib:.0f} MiB measured, {found['ratio']:.2f}")
    assert found["measured"] == pytest.approx(peak_mib, rel=0.05), "what the run says is what the kernel counts"
    assert found["estimated"] == pytest.approx(shown["memory"]["total_bytes"] / MIB)
    assert peak_mib == pytest.approx(found["estimated"], rel=TOLERANCE)
    lines = printed(capsys, str(folder)).splitlines()
    assert any(re.match(r"episodes per minute +[\d.]+ +[\d.]+ +[\d.]+$", line) for line in lines)
    assert any(re.match(r"training, s per step +[\d.]+ +[\d.]+ +[\d.]+$", line) for line in lines)
