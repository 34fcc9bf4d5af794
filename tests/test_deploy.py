"""The files in `deploy/`: what they name is there, the image's files suffice for the package, and the scripts act."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deskhand.cli.main import app
from deskhand.config.shipped import find_config
from deskhand.doctor.check_machine import debian_packages

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile and their arguments, with continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Path:
    """What the Dockerfile copies, and nothing else, as in the folder that its RUN lines see."""
    folder = tmp_path_factory.mktemp("image")
    for rest in arguments("COPY"):
        *sources, target = rest.split()
        for source in sources:
            place = folder / target / Path(source).name if target.endswith("/") else folder / target
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    return folder


def test_the_image_installs_the_packages_of_set_up(image) -> None:
    (line,) = [rest for rest in arguments("RUN") if "apt-get" in rest]
    listing, _, installing = line.partition("&& ")[2].partition(" | xargs apt-get install -y --no-install-recommends ")
    done = subprocess.run(["bash", "-c", listing], cwd=image, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(debian_packages())
    assert installing.split(" && ")[0].split() == ["ca-certificates", "python3-venv"]


def test_the_package_builds_from_what_the_image_copies(image, tmp_path) -> None:
    """A file that the Dockerfile forgets, or .dockerignore hides, would be missing in the image's wheel."""
    names = []
    for root, out in ((image, tmp_path / "image"), (ROOT, tmp_path / "checkout")):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        names.append(set(zipfile.ZipFile(next(out.iterdir())).namelist()))
    assert names[0] == names[1]
    hidden = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"}
    copied = {Path(source).parts[0] for rest in arguments("COPY") for source in rest.split()[:-1]}
    assert not hidden & copied


def test_the_image_runs_without_privileges_and_its_command_is_deskhand() -> None:
    user = arguments("USER")
    assert user == ["1000"]
    assert instructions().index(("USER", "1000")) > max(
        index for index, (word, _) in enumerate(instructions()) if word == "RUN"
    )
    (created,) = [rest for rest in arguments("RUN") if "useradd" in rest]
    assert "--uid 1000" in created
    assert arguments("ENTRYPOINT") == ['["deskhand"]']
    app.parse_args(["doctor"], exit_on_error=False, print_error=False)
    (torch,) = [rest for rest in arguments("RUN") if "torch" in rest]
    asked = torch.partition("$(")[2].partition(")")[0]
    pinned = subprocess.run(["bash", "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"torch==[\d.]+\n", pinned.stdout)


def stand_in(folder: Path, name: str) -> Path:
    """A program of this name that writes its arguments, one call a line, and exits with 0."""
    program = folder / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/usr/bin/env bash\nprintf "%q " "$@" >>{folder}/calls\necho >>{folder}/calls\n')
    program.chmod(0o755)
    return folder / "calls"


def calls(log: Path) -> list[list[str]]:
    return [shlex.split(line) for line in log.read_text().splitlines()]


def test_a_rented_gpu_trains_in_the_container_and_resumes(tmp_path) -> None:
    log = stand_in(tmp_path / "bin", "docker")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HF_TOKEN": "hf_secret"}
    command = ["bash", str(DEPLOY / "cloud_gpu.sh"), "qwen25vl_3b_lora_24gb", "first", "--set", "loop.total_steps=3"]
    options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "check": True}
    subprocess.run(command, **options)
    (tmp_path / "runs" / "first").mkdir()
    (tmp_path / "runs" / "first" / "run.sqlite").touch()
    subprocess.run(command, **options)
    doctor, train, resume = (line[line.index("deskhand") + 1 :] for line in calls(log))
    assert doctor == ["doctor"]
    assert train == ["train", "qwen25vl_3b_lora_24gb", "/runs/first", "--set", "loop.total_steps=3"]
    assert resume == ["train", "--resume", "/runs/first"]
    for words in (doctor, train, resume):
        app.parse_args(words, exit_on_error=False, print_error=False)
    first = calls(log)[0]
    assert first[first.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert f"{tmp_path / 'runs'}:/runs" in first
    assert "hf_secret" not in log.read_text()
    wrong = subprocess.run(
        [*command[:3], "../first"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stderr) == (2, "error: ../first: must be a name, not a path\n")


def batch_job(tmp_path: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """`deploy/train.sbatch` as Slurm starts it: a copy in its spool folder; a variable names the folder of `sbatch`."""
    spool = tmp_path / "slurm_script"
    shutil.copy(DEPLOY / "train.sbatch", spool)
    environment = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path), **variables}
    return subprocess.Popen(["bash", str(spool), *words], cwd="/", env=environment, stderr=subprocess.PIPE, text=True)


def test_a_slurm_job_trains_and_resumes_in_a_checkout_and_in_an_image(tmp_path) -> None:
    log = stand_in(tmp_path / ".venv" / "bin", "python")
    assert batch_job(tmp_path, "tiny_cpu", "runs/a", "--set", "seed=2").wait() == 0
    (tmp_path / "runs" / "a" / "run.sqlite").touch()
    assert batch_job(tmp_path, "tiny_cpu", "runs/a").wait() == 0
    assert calls(log) == [
        ["-m", "deskhand", "train", "tiny_cpu", "runs/a", "--set", "seed=2"],
        ["-m", "deskhand", "train", "--resume", "runs/a"],
    ]
    log = stand_in(tmp_path / "bin", "apptainer")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert batch_job(tmp_path, "tiny_cpu", "runs/b", PATH=path, DESKHAND_IMAGE="deskhand.sif").wait() == 0
    assert f"{tmp_path},{tmp_path / 'runs' / 'b'}" in calls(log)[0]
    program = calls(log)[0][calls(log)[0].index("deskhand.sif") + 1 :]
    assert program == ["/opt/deskhand/venv/bin/deskhand", "train", "tiny_cpu", "runs/b"]
    (workdir,), (made,) = arguments("WORKDIR")[:1], [rest for rest in arguments("RUN") if "-m venv" in rest]
    assert program[0].startswith(f"{workdir}/{made.split('-m venv ')[1].split()[0]}/bin/")
    job = batch_job(tmp_path, "tiny_cpu")
    assert job.communicate()[1].startswith("usage: sbatch deploy/train.sbatch CONFIG RUN_DIR")
    assert job.returncode == 2


def test_a_slurm_job_passes_the_warning_before_its_end_on_and_waits(tmp_path) -> None:
    program = tmp_path / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, signal, sys, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
        "def end(*_):\n    time.sleep(0.3)\n    (here / 'ended').touch()\n    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end)\n(here / 'ready').touch()\nwhile True:\n    time.sleep(60)\n"
    )
    program.chmod(0o755)
    job = batch_job(tmp_path, "tiny_cpu", "runs/a")
    while not (tmp_path / "ready").exists():
        assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 130
    assert (tmp_path / "ended").exists()


PAGES = [ROOT / "docs" / name for name in ("deployment.md", "areal-cluster.md")]
LINES = [
    line.strip() for page in PAGES for line in page.read_text().splitlines() if "deploy/" in line or "docker" in line
]
STARTS = r"(docker (build|run)|sbatch|(\w+=\S+ )*deploy/\S+\.sh) .*"


@pytest.mark.parametrize("line", [line for line in LINES if re.fullmatch(STARTS, line)])
def test_every_line_that_starts_a_container_or_a_job_parses(line: str) -> None:
    words = [word for word in shlex.split(line) if not re.match(r"\w+=", word)]
    if words[:2] == ["docker", "build"]:
        assert words[2:] == ["-f", "deploy/Dockerfile", "-t", "deskhand", "."]
        return
    (script,) = [word for word in words if word.startswith("deploy/")] or [None]
    if script is None:
        given = words[words.index("deskhand") + 1 :] or ["doctor"]
    else:
        assert (ROOT / script).is_file()
        given = words[words.index(script) + 1 :]
        if script == "deploy/ray_node.sh":
            return
        given = ["train", *given]
    app.parse_args(given, exit_on_error=False, print_error=False)
    if given[0] == "train":
        assert find_config(Path(given[1])).is_file()


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.iterdir()))
def test_every_file_of_deploy_is_in_the_docs(name: str) -> None:
    pages = " ".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert f"deploy/{name}" in pages
