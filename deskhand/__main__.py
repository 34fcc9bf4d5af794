"""`python -m deskhand`."""

from deskhand.cli.main import main

if __name__ == "__main__":
    main()
