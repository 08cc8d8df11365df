"""``python -m qsearch`` and the console script ``qsearch``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from qsearch.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
