"""`deskhand` and `python -m deskhand`. Ctrl-C is one line also while the command line is imported and at exit."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from deskhand.cli import main as command_line

        command_line.main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
