"""Training by a shipped config with its two lines for machines: OSWorld's, for which a bridge with embedded desktops
stands, and Windows Agent Arena's. The way there is bad: refusals, proxies' errors, lost replies, and a second in which
nothing answers.

What they are for: an outage is no zero, a lease has a machine for itself, no episode begins on what the one before it
left, a killed run goes on, its report can be written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import httpx2
import task_files
import yaml
from bundled_weights import needs_weights
from fake_waa import FakeWaa
from flaky_proxy import Door
from patience import limit
from test_cli import ROOT, called
from test_remote_eval import KEY, bridge
from test_suite_config import served, with_its_two_lines

from deskhand.desktop.factory import LEASE_DB
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.remote.waa_desktop import BASELINES_FILE
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored

pytestmark = needs_weights
SMALL = (
    "loop.groups_per_step=1", "loop.group_size=4", "loop.max_staleness=0", "loop.health.vision_probe_every=0",
    "evaluation.num_episodes=0", "desktop.timeouts.op_s=20", "max_minutes=8",
)  # fmt: skip


def words(*settings: str) -> list[str]:
    return [word for setting in (*SMALL, *settings) for word in ("--set", setting)]


def written(tmp_path: Path, which: int, folder: Path, addresses: list[str]) -> str:
    """The file of tiny_cpu.yaml with the two lines for these machines."""
    config = yaml.safe_load(with_its_two_lines(ROOT / "configs" / "tiny_cpu.yaml", which, folder))
    config["desktop"]["urls"] = addresses
    file = tmp_path / "machines.yaml"
    file.write_text(yaml.safe_dump(config))
    return str(file)


def checked(folder: Path, steps: int, machines: int) -> list[EpisodeRow]:
    """The training episodes of a run that is done, after what must hold of each run."""
    with Run.open(folder, read_only=True) as run:
        point, rows = run.checkpoint(), run.episodes(TRAIN)
        assert point is not None
        assert point.step == steps
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        assert {row.cause for row in rows if row.state == "errored"} <= {"infrastructure", "cancelled"}
    book = LeaseStore(folder / LEASE_DB)
    try:
        leases = book.rows()
    finally:
        book.close()
    assert len({lease.desktop for lease in leases}) == machines
    for label in {lease.desktop for lease in leases}:
        of_one = [lease for lease in leases if lease.desktop == label]
        assert all(first.ended_at is not None and first.ended_at <= then.started_at for first, then in pairwise(of_one))
    return rows


POINTER = """\
name: In the red terminal run touch lemon
id: pointer
max_steps: 2
setup:
  - launch: notepad
milestones:
  - {name: it is on the left, check: command, run: pointer across, expect: "^[0-7]?.$", match: regex}
  - {name: it is near the left, check: command, run: pointer across, expect: "^[0-8]?.$", match: regex}
  - {name: it is above, check: command, run: pointer down, expect: "^[0-5]?.$", match: regex}
evaluate:
  - {check: command, run: pointer corner, expect: there}
"""
"""The policy in the box clicks at about (85, 60) on such a screen, now a little more to the left, now less."""


MILESTONES = ("on the left", "near the left", "above")


class Windows:
    """A machine of Windows Agent Arena behind its door. `begun` is what stood open or lay about when a task was set
    up."""

    def __init__(self, folder: Path, outage_at: int) -> None:
        self.fake = FakeWaa(folder)
        self.begun: list[tuple[list[str], list[str]]] = []
        guest = self.fake.guest
        guest.commands = {
            "pointer across": lambda: str(guest.pointer[0]),
            "pointer down": lambda: str(guest.pointer[1]),
            "pointer corner": lambda: "there" if guest.pointer == (0, 0) else "elsewhere",
        }
        launch, desk = self.fake.launch, guest.home / "Desktop"

        async def launched(request):
            self.begun.append((list(guest.windows), [each.name for each in desk.iterdir()]))
            (desk / f"left-{len(self.begun)}.txt").write_text("by the episode")
            return await launch(request)

        self.fake.launch = launched
        self.fake.app = type(self.fake.app)(routes=self.fake.routes())
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.fake.app), base_url="http://machine")
        self.door = Door(client, outage_at=outage_at)


def test_waa_machines_are_trained_on_despite_failures_and_a_kill(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "pointer.yaml").write_text(POINTER)
    machines = [Windows(tmp_path / name, outage_at) for name, outage_at in (("a", 60), ("b", 100))]
    folder = tmp_path / "run"
    with served(*(machine.door.app for machine in machines)) as ports:
        file = written(tmp_path, 1, tmp_path / "tasks", [f"http://127.0.0.1:{port}" for port in ports])
        suite = ("suite.format=openadapt", f"suite.path={tmp_path}/tasks", "suite.screen_size=[320, 240]")
        settings = words(*suite, "loop.total_steps=1000")
        command = [sys.executable, "-m", "deskhand", "train", file, str(folder), *settings]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, cwd=ROOT)
        deadline = time.monotonic() + limit(300)
        try:
            while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
                assert process.poll() is None, (tmp_path / "said").read_text()
                assert time.monotonic() < deadline, (tmp_path / "said").read_text()
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with Run.open(folder, read_only=True) as run:
            point = run.checkpoint()
            assert point is not None
            before = {row.id: row.reward for row in run.episodes(TRAIN) if row.finished_at is not None}
        steps = point.step + 1
        arguments = ["--resume", str(folder), "--set", f"loop.total_steps={steps}"]
        code, _, err = called(monkeypatch, capsys, "train", *arguments)
        assert code == 0, err
        code, _, err = called(monkeypatch, capsys, "report", str(folder), "--out", str(tmp_path / "report.html"))
        assert code == 0, err
    assert "episodes are limited to 2 at a time" in (tmp_path / "said").read_text()
    rows = checked(folder, steps, len(machines))
    assert {row.id: row.reward for row in rows}.items() >= before.items(), (
        "what was finished before the kill stays as it was"
    )
    assert "pointer" in (tmp_path / "report.html").read_text()
    assert (folder / BASELINES_FILE).exists()
    for machine in machines:
        assert machine.begun
        assert all(state == (["Program Manager"], []) for state in machine.begun), (
            "an episode began on what another one left"
        )
        assert min(machine.door.seen[kind] for kind in ("cut", "429", "502 before", "502 after")) > 0
    with Run.open(folder, read_only=True) as run:
        results = [load_result(run, row.id) for row in rows if row.value is not None]
    assert len({result.reward for result in results}) > 1, "dense rewards"
    for result in results:
        assert isinstance(result.outcome, Scored)
        (finding,) = result.outcome.findings
        assert finding.read in ("'there'", "'elsewhere'"), "each score is what the machine itself said"
        assert set(result.outcome.parts) == {"end_state", *(f"milestone: it is {name}" for name in MILESTONES)}
        assert result.reward_terms["baseline"] == 0, "the pointer stands where no earlier episode put it"


TERMINAL = (
    "mkdir -p red && cd red && PS1='$ ' exec xterm -bg '#c02020' -fg '#ffffff' -fa 'DejaVu Sans Mono' -fs 6 -b 2 -bw 0 "
    "+sb -geometry 12x6+40+40 -title red -xrm '*cursorBlink: false' -e bash --norc --noprofile"
)
RESET = """\
import http.client, sys
line = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
line.request("POST", "/revert")
sys.exit(line.getresponse().status != 200)
"""


class Linux:
    """A machine with OSWorld's server behind its door: the lease that it has of a bridge, a new one after each
    revert."""

    def __init__(self, bridge: str, outage_at: int) -> None:
        self.http = httpx2.AsyncClient(base_url=bridge, headers={"authorization": f"Bearer {KEY}"}, timeout=limit(120))
        self.lease = ""
        self.door = Door(self.http, lambda: f"/leases/{self.lease}/osworld", outage_at=outage_at, revert=self.revert)

    async def revert(self) -> None:
        if self.lease:
            await self.http.delete(f"/leases/{self.lease}")
        self.lease = (await self.http.post("/leases", json={})).json()["lease"]


def test_osworld_machines_are_trained_on_and_reset_before_each_episode(monkeypatch, capsys, tmp_path) -> None:
    task = task_files.task(
        id="touch",
        instruction="In the red terminal run touch lemon",
        config=[
            {"type": "launch", "parameters": {"command": TERMINAL, "shell": True}},
            {"type": "sleep", "parameters": {"seconds": 1}},
        ],
        related_apps=["os"],
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "ls red", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "lemon\n"}},
        },
    )
    task_files.written(tmp_path / "tasks", task, "os/touch.json")
    folder, back = tmp_path / "run", [sys.executable, "-S", "-c", RESET, "{host}", "{port}"]
    with bridge("256x192") as address:
        machines = [Linux(address, outage_at) for outage_at in (25, 40)]
        with served(*(machine.door.app for machine in machines)) as ports:
            file = written(tmp_path, 0, tmp_path / "tasks", [f"http://127.0.0.1:{port}" for port in ports])
            config = yaml.safe_load(Path(file).read_text())
            del config["desktop"]["skip_reset"]
            config["desktop"]["reset_command"] = back
            Path(file).write_text(yaml.safe_dump(config))
            suite = ("suite.format=osworld", f"suite.path={tmp_path}/tasks", "suite.screen_size=[256, 192]")
            # PPO: GRPO learns nothing from this task, which is nearly always solved.
            training = ("suite.max_episode_steps=4", "loop.total_steps=2", "trainer.algorithm=ppo")
            settings = words(*suite, *training)
            code, _, err = called(monkeypatch, capsys, "train", file, str(folder), *settings)
            assert code == 0, err
    rows = checked(folder, 2, len(machines))
    scored = [row for row in rows if row.value is not None]
    assert len(scored) >= 8
    assert 1.0 in {row.value for row in scored}
    assert sum(machine.door.seen["reverted"] for machine in machines) >= len(scored)
    assert all(machine.door.seen["cut"] for machine in machines)
    with Run.open(folder, read_only=True) as run:
        for result in (load_result(run, row.id) for row in scored):
            assert isinstance(result.outcome, Scored)
            typed = any("touch lemon" in step.text for step in result.transcript.steps)
            assert typed or not result.success, "no episode is paid for what another one did"
