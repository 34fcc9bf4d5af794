"""The command line. Invariant: what the user can mend is one line on standard error and exit code 2; Ctrl-C is 130.

Commands import what they need when they are called, so help needs neither torch nor desktops.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

from deskhand.cli import models
from deskhand.cli.actions import actions_app
from deskhand.cli.areal import Trainer, areal_app, train_by_areal
from deskhand.cli.audit import audit
from deskhand.cli.common import (
    USER_ERROR,
    Flag,
    Overrides,
    Stage,
    current_command,
    open_resumed_run,
    print_table,
    run_context,
    write_report,
)
from deskhand.cli.desktop import desktop_app
from deskhand.cli.rescore import rescore
from deskhand.cli.serve import serve
from deskhand.cli.serve_sandboxes import gateway
from deskhand.cli.tasks import tasks_app
from deskhand.errors import ConfigError, DeskhandError

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.store.run import Run

STARTED = time.monotonic()
INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRONG_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP
)  # fmt: skip
"""What is wrong with a path that was given."""

app = App(
    name="deskhand", help="Trains vision-language models to use a computer, by reinforcement learning on real desktops."
)
tiny_app = App(name="tiny", help="The policy in the box.")
app.command(tasks_app)
app.command(actions_app)
app.command(desktop_app)
app.command(tiny_app)
app.command(areal_app)
app.command(models.evaluate, name="eval")
for _command in (models.sft, models.export, models.plan):
    app.command(_command)
app.command(serve)
app.command(rescore)
tasks_app.command(audit)
tasks_app.command(models.suite)
app.command(gateway)

DEMO_CONFIG = "tiny_cpu.yaml"


@app.command
def demo(
    *,
    folder: Path = Path("runs/demo"),
    resume: Annotated[bool, Flag] = False,
    fresh: Annotated[bool, Flag] = False,
    overrides: Overrides = None,
) -> None:
    """Train the policy in the box on embedded desktops and show held-out success before and after.

    Parameters
    ----------
    folder
        Where the run is kept.
    resume
        Go on with the run in the folder.
    fresh
        Start anew; the run in the folder is moved aside, to FOLDER-1, FOLDER-2, ...
    """
    from deskhand.config.load import load_config
    from deskhand.recipes import train as story
    from deskhand.recipes.suite import load_suite

    if resume and fresh:
        raise ConfigError("--resume and --fresh exclude each other; give one")
    there = story.progress_of(folder)
    if there != "none" and not fresh:
        step, steps = there
        if not resume and sys.stdin.isatty() and sys.stdout.isatty():
            fresh = (
                _ask(f"{folder} holds a run at step {step} of {steps}. Go on with it, or start anew? [go/new] ")
                == "new"
            )
        elif not resume:
            print(f"{folder} holds a run at step {step} of {steps}: going on with it (--fresh starts anew)")
    if there == "none" and resume:
        raise ConfigError(f"{folder} holds no run to resume; leave --resume out")
    if there == "none" or fresh:
        config = load_config(_shipped_config(DEMO_CONFIG), overrides or (), os.environ)
        load_suite(config.suite, config.desktop.backend)
        moved = story.archive_run(folder)
        if moved is not None:
            print(f"the run that was in {folder} is now in {moved}")
        run = story.create_run(config, folder, "deskhand demo")
    else:
        config, run = open_resumed_run(folder, overrides)
    _work(config, run)


@app.command
def train(
    config: Path | None = None,
    /,
    *,
    folder: Path,
    resume: Annotated[bool, Flag] = False,
    trainer: Trainer = "local",
    stage: Stage = None,
    overrides: Overrides = None,
) -> None:
    """Train as a config file says, and evaluate before and after.

    Parameters
    ----------
    config
        YAML file of settings.
    folder
        Where the run is kept; a new or empty folder, or with --resume that of a run.
    resume
        Go on with the run in the folder, with its own settings; no config file is given then.
    trainer
        Deskhand's own, or AReaL, whose experiments are other files (configs/areal) and which goes on by itself.
    """
    from deskhand.config.load import load_config
    from deskhand.recipes import train as story

    if trainer == "areal":
        raise SystemExit(train_by_areal(config, folder, stage, overrides))
    if resume:
        if config is not None:
            raise ConfigError(
                f"{config}: a resumed run keeps its own settings; leave the file out, or change single ones by --set"
            )
        settings, run = open_resumed_run(folder, overrides, stage=stage)
        if "sft" in run.metadata:
            run.close()
            raise ConfigError(f"{folder} holds a warm start; go on with it by: deskhand sft --folder {folder}")
    elif config is None:
        raise ConfigError(
            "no config file was given; for instance: deskhand train configs/tiny_cpu.yaml --folder runs/mine"
        )
    else:
        settings = load_config(config, overrides or (), os.environ, stage=stage)
        run = story.create_run(settings, folder, f"deskhand train {config}")
    _work(settings, run, current_command() if resume else None)


@app.command(name="record")
def record_agent(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    upstream: str,
    out: Path,
    checkpoint: str | None = None,
    token_ids: Annotated[bool, Flag] = False,
    key_env: str = "UPSTREAM_API_KEY",
    host: str = "127.0.0.1",
    port: int = 0,
) -> None:
    """Record what an agent asks of an engine, without changing either, as data for supervised training and RL.

    Parameters
    ----------
    command
        The agent, after --; it finds the recording address and key in its environment. Without it, deskhand records until Ctrl-C.
    upstream
        The engine's address, as http://127.0.0.1:8000/v1; chat completions, responses and Anthropic messages are recorded.
    out
        The folder to write; a folder of earlier recordings is added to.
    checkpoint
        Folder, hub id or tiny: the model behind the address. Call graphs with token ids are written besides.
    token_ids
        Ask the engine for token ids and log-probs, as vLLM gives them.
    key_env
        The environment variable with the engine's key.
    host
        Where to listen.
    port
        Where to listen; 0 takes a free one.
    """
    import asyncio

    from deskhand.recipes import record

    if checkpoint is not None:
        from deskhand.models.load import check_checkpoint

        check_checkpoint(checkpoint)
    code, began = 0, True
    try:
        relaying = record.record(upstream, out, command, host=host, port=port, key_env=key_env, ask_token_ids=token_ids)
        code = asyncio.run(relaying)
    except ConfigError:
        began = False
        raise
    except KeyboardInterrupt:
        if command:
            raise
    finally:
        if began and (out / "sessions").is_dir():
            print("\n".join(record.write_datasets(out, checkpoint).lines()), file=sys.stderr)
    raise SystemExit(code)


@app.command
def report(folder: Path, /, *, out: Path | None = None) -> None:
    """Write the one-file HTML report of a run.

    Parameters
    ----------
    folder
        The folder of a run.
    out
        Where to; report.html in the run's folder if it is left out.
    """
    from deskhand.reporting.build_report import open_run

    with open_run(folder) as run:
        print(write_report(run, out))


@app.command
def doctor(
    *, desktop: str | None = None, key_env: str = "DESKHAND_SERVER_API_KEY", evaluate: str | None = None
) -> None:
    """Check that this machine has what Deskhand needs, or that a desktop elsewhere works; exits with 2 when something is missing.

    Parameters
    ----------
    desktop
        Address of a bridge, a sandbox gateway, or a machine with OSWorld's or WAA's server: tried layer by layer instead.
    key_env
        The environment variable with its key.
    evaluate
        Address of WAA's evaluate server, which is tried too.
    """
    from deskhand.doctor.check_machine import check_machine, format_results

    if desktop is not None:
        import asyncio

        from deskhand.doctor.check_desktop import check_desktop

        findings = asyncio.run(check_desktop(desktop, os.environ.get(key_env), evaluate_url=evaluate))
    else:
        findings = check_machine()
    print("\n".join(format_results(findings)))
    if any(finding.needed and not finding.ok for finding in findings):
        raise SystemExit(USER_ERROR)


@tiny_app.command
def build(*, work: Path = Path("runs/tiny-build"), out: Path, seed: int = 0) -> None:
    """Make the policy in the box from nothing: screens, grounding, demonstrations, imitation. Takes over an hour on two cores.

    Parameters
    ----------
    work
        Where the stages are kept; what is there already is not made again.
    out
        The checkpoint folder to write.
    seed
        Of everything that is random.
    """
    from deskhand.recipes.tiny.build import BuildPlan
    from deskhand.recipes.tiny.build import build as make

    make(BuildPlan(seed=seed), work, out)


def _shipped_config(name: str) -> Path:
    """A config of the package, or of the checkout that it runs from."""
    package = Path(__file__).parent
    return next(
        (path for path in (package / "configs" / name, package.parent / "configs" / name) if path.is_file()), Path(name)
    )


def _ask(question: str) -> str:
    """ "go" or "new"."""
    while True:
        try:
            answer = input(question).strip().lower()
        except EOFError:
            raise KeyboardInterrupt from None
        for word in ("go", "new"):
            if answer and word.startswith(answer):
                return word


def _work(config: Config, run: Run, again: str | None = None) -> None:
    import asyncio

    from deskhand.recipes import plan
    from deskhand.recipes import train as story
    from deskhand.reporting.terminal import TerminalDisplay, comparison

    with run_context(run, again), TerminalDisplay() as display:
        plan.check_memory(config)
        done = asyncio.run(story.run_training(config, run, display, STARTED))
    if done.before and done.after:
        print_table(comparison(done.before, done.after))
    print(f"report: {(run.folder / 'report.html').resolve()}")


def _fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(USER_ERROR)


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(f"{error} (deskhand --help shows what there is)")
    except DeskhandError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "deskhand").split(".")[0] == "deskhand":
            raise
        _fail(f"the Python package {error.name} is not installed; run make setup, or: pip install 'deskhand[train]'")
    except OSError as error:
        if error.errno in WRONG_PLACE and error.filename:
            _fail(f"{error.filename}: {error.strerror}; check the path and its rights, or name another one")
        if error.errno not in DISK_FULL:
            raise
        _fail(
            f"{error.filename or 'a file'} cannot be written ({error.strerror}); free the disk, then give the same command again"
        )
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
