"""``python -m qsearch`` and the console script ``qsearch``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:  # every import stands inside: Ctrl-C while one runs is no traceback
        import gc

        gc.set_threshold(20_000)  # imports leave no garbage: 5 % less CPU time of a search

        from qsearch.limits import forked

        ended = forked(sys.argv[1:])
        if ended is not None:
            sys.exit(ended)

        from qsearch.cli.main import run

        code = run(sys.argv[1:])
        gc.freeze()  # or Python's last collections walk all that it has imported: 0.1 to 0.4 s
    except KeyboardInterrupt:
        from qsearch.exit_codes import EXIT_INTERRUPTED

        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
