"""A disk that takes no more. The command ends with one line that names the file and the fix, nothing that was there is
harmed, and when there is room again the same command goes on.

The processes of these tests may not let a file grow beyond a bound (RLIMIT_FSIZE), which they meet as they would meet a
full disk: a write fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import limit

from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import Run
from deskhand.trainer.checkpoint import verify

SUPPORT = Path(__file__).parent.parent / "support"
BOUNDED = """
import asyncio, pathlib, resource, signal, sys
import training_fixture
from deskhand.errors import DeskhandError
bound = int(sys.argv[4])
if bound:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    training_fixture.checkpoint(pathlib.Path(sys.argv[1]).parent / "run-checkpoint")
    import torch, transformers.models.qwen3_vl.modeling_qwen3_vl  # what is compiled on the way is not what is bounded
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, resource.RLIM_INFINITY))
try:
    asyncio.run(training_fixture._main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), 1))
except DeskhandError as error:
    print(f"ended: {type(error).__name__}: {error}")
    sys.exit(3)
"""


def train(folder: Path, steps: int, bound: int = 0) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", BOUNDED, str(folder), str(steps), str(folder.parent / "journal"), str(bound)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=limit(240))


def test_a_full_disk_ends_a_run_with_one_line_and_the_run_resumes(tmp_path):
    folder = tmp_path / "run"
    done = train(folder, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    with Run.open(folder, read_only=True) as run:
        before = {row.id for row in run.episodes() if row.finished_at is not None}
    largest = max(path.stat().st_size for path in (folder / "checkpoints").rglob("*"))
    done = train(folder, 60, largest + 100_000)  # checkpoints fit: the database is what grows
    assert done.returncode == 3, (done.stdout + done.stderr)[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ended: ")]
    assert "run.sqlite: cannot be written" in line
    assert "free disk space" in line
    with Run.open(folder) as run:
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        last = run.checkpoint()
        assert before <= {row.id for row in run.episodes() if row.finished_at is not None}
        verify(last.path)
    done = train(folder, last.step + 1)
    assert done.returncode == 0, done.stdout + done.stderr
    with Run.open(folder, read_only=True) as run:
        assert run.checkpoint().step == last.step + 1
        assert [line["step"] for line in run.metrics()] == list(range(1, last.step + 2))
