"""``python -m qsearch`` and the console script ``qsearch``."""

from __future__ import annotations

import sys

from qsearch.process import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from qsearch.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while the imports of this very line run
        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
