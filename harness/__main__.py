"""`python -m harness`, and the one place where the process's exit status is set."""

import sys

from harness.cli import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
