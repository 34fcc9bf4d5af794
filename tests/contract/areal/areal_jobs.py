"""What takes long in the tests against a real AReaL, two pieces at a time. Invariant: each piece is done once, by
itself, and what it found is what the tests look at.

A piece is a program in AReaL's environment with what it needs around it. Most of one is waiting, for imports and for
desktops.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import areal_machines
import areal_models
import recording
import torch
from areal_cluster_jobs import EXPERIMENT, ended, environment_of, mistaken, ray, told
from areal_cpu_server import HERE, ROOT, inference_server, surroundings
from areal_osworld import TASK_ID
from fake_sglang import listening
from patience import limit
from processes import is_alive, run_to_end, start
from safetensors.torch import load_file
from text_server import TextServer

from deskhand.models.load import LOADING, TINY_FOLDER

OSWORLD_FILE = ROOT.parent / "shared" / "data" / "osworld" / "chrome" / f"{TASK_ID}.json"
FAMILIES = ("qwen3_vl", "qwen2_5_vl")
STEPS = 5
"""Of AReaL's trainer in one go; then the run is ended from outside and goes on for one more."""
ONLINE_STEPS = 2


def probe(
    python: Path, name: str, folder: Path, *arguments: str, timeout_s: float = 420, **variables: str
) -> dict[str, Any]:
    """What a program beside this file wrote to folder/found.json, with these environment variables besides."""
    words = [str(python), str(HERE / name), *arguments, str(folder)]
    with (folder / "log.txt").open("w") as log:
        done = run_to_end(
            words,
            stdout=log,
            stderr=log,
            check=False,
            env={**surroundings(), **variables},
            cwd=folder,
            timeout=limit(timeout_s),
        )
    assert done.returncode == 0, (folder / "log.txt").read_text()[-6000:]
    return json.loads((folder / "found.json").read_text())


def checkpoint_of(folder: Path, family: str) -> Path:
    with LOADING:
        torch.set_num_threads(1)
        return areal_models.save_checkpoint(folder / family, family)


def training(family: str) -> Callable[[Path, Path], dict[str, Any]]:
    def run(python: Path, folder: Path) -> dict[str, Any]:
        checkpoint = checkpoint_of(folder, family)
        with inference_server(checkpoint) as address:
            found = probe(python, "training_probe.py", folder, str(checkpoint), address)
        with (folder / "samples.pickle").open("rb") as file:
            samples, images = pickle.load(file)
        return {**found, "family": family, "checkpoint": checkpoint, "samples": samples, "images": images}

    return run


def proxied(python: Path, folder: Path) -> dict[str, Any]:
    with inference_server(TINY_FOLDER, 4096) as address:
        return probe(python, "proxy_probe.py", folder, str(TINY_FOLDER), address)


def parsed(python: Path, folder: Path) -> dict[str, Any]:
    found = probe(python, "configs_probe.py", folder, str(ROOT), str(TINY_FOLDER))
    environment = {**surroundings(), "DESKHAND_AREAL_PYTHON": str(python)}
    words = [sys.executable, "-m", "deskhand", "areal", "doctor", "--fix"]
    done = run_to_end(words, env=environment, check=False, capture_output=True, text=True, cwd=ROOT)
    return {**found, "doctor": [done.returncode, done.stdout, done.stderr]}


def upstream(python: Path, folder: Path) -> dict[str, Any]:
    example = ROOT / "upstream" / "areal" / "examples" / "computer_use"
    with inference_server(TINY_FOLDER, 4096) as address:
        path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
        return probe(python, "upstream_probe.py", folder, str(example), str(TINY_FOLDER), address, PATH=path)


@contextmanager
def text_model(folder: Path) -> Iterator[tuple[Path, TextServer, str]]:
    """The checkpoint of a text model, and host:port of a server of it."""
    from transformers import Qwen3ForCausalLM

    with LOADING:
        torch.set_num_threads(1)
        checkpoint = areal_models.save_text_checkpoint(folder / "model")
        server = TextServer(Qwen3ForCausalLM.from_pretrained(checkpoint).eval())
    with listening(server.app()) as address:
        yield checkpoint, server, address.removeprefix("http://")


def text(python: Path, folder: Path) -> dict[str, Any]:
    with text_model(folder) as (checkpoint, _, address):
        return probe(python, "desktops_probe.py", folder, "text", str(checkpoint), address)


def slurm(python: Path, folder: Path) -> dict[str, Any]:
    experiment = ROOT / "configs" / "areal" / "osworld_qwen3vl_4b.yaml"
    return probe(python, "slurm_probe.py", folder, str(experiment))


def kl(python: Path, folder: Path) -> dict[str, Any]:
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with LOADING:
        reference = areal_models.save_checkpoint(folder / "reference", "qwen3_vl", seed=1)
    with inference_server(checkpoint) as address:
        found = probe(python, "objectives_probe.py", folder, "kl", str(checkpoint), address, str(reference))
    return {**found, "folder": folder}


def lora(python: Path, folder: Path) -> dict[str, Any]:
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with inference_server(checkpoint) as address:
        return probe(python, "objectives_probe.py", folder, "lora", str(checkpoint), address)


def osworld(python: Path, folder: Path) -> dict[str, Any]:
    if not OSWORLD_FILE.is_file():
        return {}
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with inference_server(checkpoint) as address:
        return probe(python, "desktops_probe.py", folder, "osworld", str(checkpoint), address, str(OSWORLD_FILE))


def sources(python: Path, folder: Path) -> dict[str, Any]:
    """A task of OpenAdapt, of Windows Agent Arena and of OSWorld, each trained for one update."""
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with areal_machines.machines(folder) as served, inference_server(checkpoint) as address:
        listed = folder / "sources.json"
        listed.write_text(json.dumps(served))
        return probe(python, "desktops_probe.py", folder, "sources", str(checkpoint), address, str(listed))


def reading(python: Path, folder: Path) -> dict[str, Any]:
    checkpoints, pictures, out = folder / "checkpoints", folder / "pictures", folder / "out"
    for made in (checkpoints, pictures, out):
        made.mkdir()
    for family in FAMILIES:
        checkpoint_of(checkpoints, family)
    shutil.copytree(TINY_FOLDER, checkpoints / "tiny")
    for number, size in enumerate([(320, 256), (333, 211), (64, 48)]):
        (pictures / f"{number}.png").write_bytes(recording.png(number, *size))
    found = probe(python, "reading_probe.py", out, str(checkpoints), str(pictures))
    return {**found, "checkpoints": checkpoints, "pictures": pictures}


def wheel(folder: Path) -> Path:
    """Deskhand's wheel, built from this checkout."""
    words = [
        "-m",
        "pip",
        "--quiet",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    (built,) = folder.glob("deskhand-*.whl")
    return built


def on_top(python: Path, folder: Path) -> Path:
    """The Python of a new environment that has the packages of another one, too."""
    made = folder / "environment"
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(made)], check=True)
    (packages,) = made.glob("lib/python3.*/site-packages")
    base = [str(path) for path in python.parents[1].glob("lib/python3.*/site-packages")]
    (packages / "base.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in base))
    return made / "bin" / "python"


def installed(python: Path, folder: Path) -> dict[str, Any]:
    """Deskhand's wheel, installed into AReaL's environment without an index: its doctor, and a run that it trains. And
    installed into an environment of its own: what it shows AReaL's Python."""
    built, made = wheel(folder), folder / "run"
    own = on_top(python, folder)
    words = ["-m", "pip", "--quiet", "install", "--no-index", str(built)]
    done = subprocess.run([str(own), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    removed = ("PYTHONPATH", "DESKHAND_AREAL_PYTHON", "PIP_FIND_LINKS")
    environment = {name: value for name, value in surroundings().items() if name not in removed}
    environment["DESKHAND_VENV_DIR"] = str(folder / "environments")

    def deskhand(*words: str, timeout_s: float = 420) -> subprocess.CompletedProcess[str]:
        return run_to_end(
            [str(own), "-m", "deskhand", *words], env=environment, cwd=folder, check=False, capture_output=True,
            text=True, timeout=limit(timeout_s),
        )  # fmt: skip

    doctor = deskhand("areal", "doctor")
    (config,) = own.parents[1].glob("lib/python3.*/site-packages/deskhand/configs/areal/tiny_cpu.yaml")
    done = deskhand("train", str(config), str(made), "--trainer", "areal", "--profile", "smoke")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    done = deskhand("report", str(made))
    assert done.returncode == 0, done.stderr
    return {
        "environment": own.parents[1],
        "doctor": [doctor.returncode, doctor.stdout + doctor.stderr],
        "steps": (made / "areal_metrics.jsonl").read_text().count("\n"),
        "report": (made / "report.html").read_text(),
        **_beside(built, folder),
    }


def _beside(built: Path, folder: Path) -> dict[str, Any]:
    """What a wheel shows AReaL's Python from an environment that has other packages beside it."""
    alone = folder / "alone"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(alone)], check=True)
    (packages,) = alone.glob("lib/python3.*/site-packages")
    words = ["-m", "pip", "--quiet", "install", "--no-deps", "--target", str(packages), str(built)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    (packages / "transformers.py").write_text("")
    (packages / "rest.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    program = (
        "from pathlib import Path; from deskhand.integrations.areal.launcher import worker_environment as of; "
        f"print(of(Path('/x/bin/python'), {{'DESKHAND_VENV_DIR': {str(folder / 'paths')!r}}})['PYTHONPATH'])"
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(alone / "bin" / "python"), "-c", program]
    shown = subprocess.run(words, env=clean, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    other = "import importlib.util as u; print('no transformers' if u.find_spec('transformers') is None else 'hidden')"
    words = [sys._base_executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {shown!r}); {other}"]
    hidden = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    return {"beside": sorted(path.name for path in Path(shown).iterdir()), "hidden": hidden}


def online(python: Path, folder: Path) -> dict[str, Any]:
    """`deskhand train` with AReaL in its online mode and `deskhand areal run-online` beside it, until the run has made
    its updates."""
    made, log = folder / "run", folder / "log.txt"
    with text_model(folder) as (checkpoint, server, address):
        settings = (
            f"actor.path={checkpoint}",
            f"++deskhand.servers=[{address}]",
            "++deskhand.workflow_class=deskhand.integrations.areal.agent.OSWorldAgent",
            "++deskhand.workflow.tasks=areal_workflows.terminal_by_chance",
            "++deskhand.workflow.agent.observation=a11y_tree",
            "++deskhand.workflow.agent.max_consecutive_errors=2",
            "deskhand.workflow.desktops.local=2",
            "deskhand.workflow.engine.max_model_len=12000",
            "deskhand.suite.families=[terminal_run]",
            "++rollout.agent.mode=online",
            "++rollout.agent.engine_max_tokens=16384",
            "rollout.max_concurrent_rollouts=2",
            "rollout.max_head_offpolicyness=0",
            "gconfig.max_new_tokens=5",
            "actor.mb_spec.max_tokens_per_mb=16384",
            "actor.optimizer.lr=1e-3",
            "train_dataset.batch_size=2",
            f"total_train_steps={ONLINE_STEPS}",
        )
        words = [EXPERIMENT, str(made), *told(*settings)]
        train = [sys.executable, "-m", "deskhand", "train", *words, "--trainer", "areal"]
        play = [sys.executable, "-m", "deskhand", "areal", "run-online", *words]
        environment = environment_of(python)
        with (
            log.open("w") as file,
            ended(start(train, stdout=file, stderr=file, env=environment, cwd=ROOT)) as run,
        ):
            deadline = time.monotonic() + limit(300)
            while not (made / "proxy_gateway.json").is_file():
                assert run.poll() is None, log.read_text()[-8000:]
                assert time.monotonic() < deadline, log.read_text()[-8000:]
                time.sleep(0.1)
            played = run_to_end(
                play, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=limit(300)
            )
            assert played.returncode == 0, played.stdout[-4000:] + played.stderr[-4000:] + log.read_text()[-8000:]
            code = run.wait(limit(120))
        assert code == 0, log.read_text()[-8000:]
        (saved,) = (made / "checkpoints").rglob("*globalstep*/model.safetensors")
        kept = load_file(saved)
        same = all(torch.equal(tensor, kept[name]) for name, tensor in server.model.state_dict().items())
    said = played.stdout.splitlines()[-1]
    return {"folder": made, "said": said, "taken": server.taken, "saved": saved.parent, "same": same}


def trainer(python: Path, folder: Path) -> dict[str, Any]:
    """A run that is ended from outside after `STEPS` steps and started again for one more, and what was left in
    between."""
    made, log = folder / "run", folder / "log.txt"
    words = [sys.executable, "-m", "deskhand", "train", EXPERIMENT, str(made), "--trainer", "areal"]
    words += told(
        f"total_train_steps={STEPS + 1}",
        "~deskhand.workflow.desktops.local",
        "++deskhand.workflow.desktops.factory=areal_workflows.flaky_pool",
        "deskhand.workflow.loop.max_group_retries=0",
        "actor.optimizer.lr=1e-4",
    )
    statistics = made / "areal_metrics.jsonl"
    environment = environment_of(python)
    with (
        log.open("w") as file,
        ended(start(words, stdout=file, stderr=file, env=environment, cwd=ROOT)) as first,
    ):
        deadline = time.monotonic() + limit(420)
        while not (statistics.is_file() and statistics.read_text().count("\n") >= STEPS):
            assert first.poll() is None, log.read_text()[-8000:]
            assert time.monotonic() < deadline, log.read_text()[-8000:]
            time.sleep(0.1)
        processes = _led_by_children(first.pid)
        first.send_signal(signal.SIGTERM)
        code = first.wait(limit(120))
        left = [process for process in processes if is_alive(process)]
        before = statistics.read_text().count("\n")
        done = run_to_end(words, stdout=file, stderr=file, check=False, env=environment, cwd=ROOT, timeout=limit(300))
    assert done.returncode == 0, log.read_text()[-8000:]
    return {"folder": made, "processes": processes, "left": left, "code": code, "before": before}


def _led_by_children(parent: int) -> list[int]:
    """Processes of the groups that children of `parent` lead."""
    stats: list[list[str]] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats.append([*path.read_text().rpartition(")")[2].split(), path.parent.name])
        except OSError:  # it has just ended
            continue
    leaders = {int(stat[-1]) for stat in stats if int(stat[1]) == parent}
    return [int(stat[-1]) for stat in stats if int(stat[2]) in leaders]


JOBS: dict[str, tuple[str, Callable[[Path, Path], dict[str, Any]]]] = {
    "trainer": ("test_areal_trainer", trainer),
    "installed": ("test_areal_install", installed),
    "upstream": ("test_areal_upstream", upstream),
    "qwen3_vl": ("test_areal_training", training("qwen3_vl")),
    "qwen2_5_vl": ("test_areal_training", training("qwen2_5_vl")),
    "ray": ("test_areal_ray", ray),
    "mistaken": ("test_areal_worker_errors", mistaken),
    "online": ("test_areal_online", online),
    "proxied": ("test_areal_proxy", proxied),
    "osworld": ("test_areal_osworld", osworld),
    "sources": ("test_areal_sources", sources),
    "parsed": ("test_areal_configs", parsed),
    "text": ("test_areal_text", text),
    "slurm": ("test_areal_slurm", slurm),
    "kl": ("test_areal_objectives", kl),
    "lora": ("test_areal_objectives", lora),
    "reading": ("test_areal_reading", reading),
}
"""By name, with the file of tests that looks at what it finds; those that take longest first."""
