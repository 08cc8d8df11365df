"""``qsearch COMMAND …``: finds the command, runs it, turns errors into lines and exit codes.

Nothing heavy is imported here or in the command files: ``qsearch --help`` must answer at once.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from qsearch import __version__
from qsearch.cli.arguments import Parser, unknown_command, with_hyphens
from qsearch.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_SEARCH_FAILED
from qsearch.identity import ForeignPackageError, check_own_packages

COMMANDS = {
    "launch": "search for the best quantization of a model; the same command resumes",
    "doctor": "which operators of a model will be integer, which not, and what to do",
    "compile": "quantize a model with one configuration, without a search",
    "insight": "which layers and tensors of a quantized model lose accuracy",
    "run": "run a .qmod on data and score it",
    "verify": "derive again that a .qmod is integers only and cannot overflow",
    "keygen": "make a pair of keys for signing modules",
    "export": "write a .qmod as C source or as ONNX",
    "show": "print the text of a model or module, or draw it",
    "diff": "run two modules on the same inputs and name the first node that differs",
    "status": "how the studies of a run folder or storage stand",
    "dashboard": "studies in a browser, live",
    "report": "a study as one HTML file with all plots",
    "trials": "the trials of a study",
    "best": "the winner of a study",
    "compare": "studies beside one another",
    "stop": "end, pause or resume a running search",
    "delete": "forget a study",
    "store": "check the schema of a store, or bring it up to date",
    "export-optuna": "write a study for optuna-dashboard",
    "completion": "print completions for bash, zsh or fish",
}


def module_of(command: str) -> str:
    """The module that holds a command."""
    return f"qsearch.cli.{command.replace('-', '_')}"


class Command(Protocol):
    """What a command file holds."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the options."""

    def run(self, args: object) -> int:
        """Do it and give the exit code."""


def build_parser(words: Sequence[str]) -> Parser:
    """The parser; only the command that ``words`` name is filled in."""
    parser = Parser(
        prog="qsearch",
        description="Search for the quantization of an ONNX model that keeps its accuracy, "
        "on integers only.",
        epilog="exit codes: 0 done, 1 accuracy target missed (all is written), 2 bad input, "
        "3 the search failed, 130 interrupted (the best so far is written)",
    )
    parser.add_argument("--version", action="version", version=f"qsearch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    wanted = next((word for word in words if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise unknown_command(wanted, list(COMMANDS))
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        if name == wanted:
            module = import_module(module_of(name))
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def run(words: Sequence[str]) -> int:
    """Run a command line.

    Returns:
        The exit code: 0 done, 1 target missed, 2 bad input, 3 failed, 130 interrupted.
    """
    try:
        check_own_packages()
    except ForeignPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        parser = build_parser(with_hyphens(words))
        if not words:
            parser.print_help()
            return EXIT_OK
        args = parser.parse(words)
        return int(args.run(args))
    except SystemExit as request:  # --help and --version
        return int(request.code or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    except Exception as error:
        return _report(error, words)


def _report(error: Exception, words: Sequence[str]) -> int:
    """Print what, where and fix; a bug of ours gets one line and, with -vv, its traceback."""
    from compiler.errors import CompilerError
    from qsearch.errors import exit_code_of

    logging.getLogger("qsearch").debug("the command ended", exc_info=error)
    if isinstance(error, CompilerError):
        print(f"error: {error}", file=sys.stderr)
        return exit_code_of(error)
    return _unforeseen(error, words)


def _unforeseen(error: Exception, words: Sequence[str]) -> int:
    """A bug of ours: one line for the user, the traceback for whoever asks for it."""
    print(
        f"error: unforeseen {type(error).__name__}: {error}\n"
        "  fix: run the same command again (finished trials are kept); with -vv it shows where",
        file=sys.stderr,
    )
    logger = logging.getLogger("qsearch")
    if any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
        logger.info("unforeseen error", exc_info=error)
    if "-vv" in words or words.count("-v") > 1:
        traceback.print_exception(error)
    return EXIT_SEARCH_FAILED
