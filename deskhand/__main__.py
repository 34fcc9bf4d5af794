"""`deskhand` and `python -m deskhand`. Ctrl-C is one line also while the command line is imported and at exit.

A command whose output is read no longer, as by `head -1`, ends without a message, with exit code 141 as in a shell.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

READER_GONE = 128 + signal.SIGPIPE


def main() -> None:
    """Run the command line."""
    outputs = _copies_of_outputs()
    try:
        _run()
    except KeyboardInterrupt:
        with suppress(OSError):
            print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BaseException as error:
        if not (any(_has_no_reader(each) for each in outputs) and _is_about_output(error)):
            raise
        _discard_output()
        raise SystemExit(READER_GONE) from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for each in outputs:
            os.close(each)


def _run() -> None:
    try:
        from deskhand.cli import main as command_line

        command_line.main()
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()  # the interpreter would do it later, and print what fails


def _copies_of_outputs() -> list[int]:
    """Return copies of the descriptors: a library may replace them when it finds that the reader is gone."""
    found = []
    for number in (1, 2):
        with suppress(OSError):
            found.append(os.dup(number))
    return found


def _has_no_reader(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def _is_about_output(error: BaseException) -> bool:
    """Return whether a broken pipe caused an error; `rich` then exits with code 1."""
    found = list(_causes(error, set()))
    is_exit = isinstance(error, SystemExit) and error.code == 1
    return is_exit or any(isinstance(each, BrokenPipeError) for each in found)


def _causes(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for other in (*getattr(error, "exceptions", ()), error.__cause__, error.__context__):
        yield from _causes(other, seen)


def _discard_output() -> None:
    """Let what is still buffered go nowhere, also at the interpreter's exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        with suppress(OSError):
            if _has_no_reader(number):
                os.dup2(nowhere, number)
    os.close(nowhere)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()


if __name__ == "__main__":
    main()
