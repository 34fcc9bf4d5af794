"""Command line entry point: `main`. Errors that the user can fix are one line on standard error and exit code 2.

The modules of this package parse arguments and print; they import `recipes` when called, so that `--help` needs no
torch. Nor does it need asyncio or rich's Markdown, which take long to import.
"""

from __future__ import annotations

import errno
import signal
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from deskhand.cli.actions import actions_app
from deskhand.cli.areal import areal_app
from deskhand.cli.audit import audit
from deskhand.cli.common import INTERRUPTED, USER_ERROR
from deskhand.cli.compare import compare
from deskhand.cli.demo import demo
from deskhand.cli.desktop import desktop_app
from deskhand.cli.dev import dev_app
from deskhand.cli.diagnose import diagnose
from deskhand.cli.doctor import doctor
from deskhand.cli.estimate import estimate
from deskhand.cli.evaluate import evaluate
from deskhand.cli.export import export
from deskhand.cli.gateway import gateway_app
from deskhand.cli.import_demonstrations import import_demonstrations
from deskhand.cli.measure import measure
from deskhand.cli.record import record
from deskhand.cli.report import report
from deskhand.cli.rescore import rescore
from deskhand.cli.serve import serve_app
from deskhand.cli.sft import sft
from deskhand.cli.tasks import tasks_app
from deskhand.cli.train import train
from deskhand.cli.try_task import try_task
from deskhand.cli.view import view
from deskhand.errors import DeskhandError
from deskhand.venvs import package_hint

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PATH_ERRORS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip

app = App(
    name="deskhand",
    help="Train vision-language models to use a computer, by reinforcement learning on real desktops.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
for _command in (demo, train, sft, export, estimate, record, report, view, compare, diagnose, doctor, rescore):
    app.command(_command)
app.command(evaluate, name="eval")
app.command(import_demonstrations, name="import")
app.command(try_task, name="try")
for _group in (tasks_app, actions_app, desktop_app, serve_app, gateway_app, areal_app, dev_app):
    app.command(_group)
tasks_app.command(audit)
tasks_app.command(measure)


def _fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(USER_ERROR)


def main() -> None:
    """Run the command line of this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(f"{error} (see deskhand --help)")
    except DeskhandError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "deskhand").split(".")[0] == "deskhand":
            raise
        _fail(f"the Python package {error.name} is not installed; {package_hint((error.name or '').split('.')[0])}")
    except OSError as error:
        if error.errno in PATH_ERRORS and error.filename:
            _fail(f"{error.filename}: {error.strerror}; check the path and its permissions")
        if error.errno not in DISK_FULL:
            raise
        _fail(
            f"{error.filename or 'output'}: cannot write: {error.strerror}; free disk space and rerun the same command"
        )
    except KeyboardInterrupt as error:
        print(f"\n{str(error) or 'interrupted'}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
