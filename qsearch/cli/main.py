"""``qsearch COMMAND …``: finds the command, runs it, turns errors into lines and exit codes.

Nothing heavy is imported here or in the command files: ``qsearch --help`` must answer at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from qsearch import ForeignPackageError, __version__, check_own_packages
from qsearch.cli import CONTEXT
from qsearch.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_SEARCH_FAILED
from qsearch.masking import masked

SEARCH: Final = "Search"
MODELS: Final = "Models and modules"
STUDIES: Final = "Studies"
SERVER: Final = "Server"
SHELL: Final = "Shell"

COMMANDS: Final = {
    "launch": (SEARCH, "launch", "search for the best quantization; run it again to resume"),
    "doctor": (
        MODELS,
        "models",
        "list which operators of a model become integer, and how to change it",
    ),
    "compile": (MODELS, "models", "quantize a model with one configuration, without a search"),
    "insight": (MODELS, "models", "find the layers and tensors that lose accuracy"),
    "show": (MODELS, "models", "print the text of a model or module, or draw it"),
    "diff": (MODELS, "models", "run two modules on the same inputs and compare every node"),
    "run": (MODELS, "modules", "run a .qmod on data and score it"),
    "verify": (MODELS, "modules", "prove that a .qmod cannot overflow; judge an int8 .onnx file"),
    "profile": (MODELS, "modules", "measure the CPU time of every layer of a .qmod"),
    "keygen": (MODELS, "modules", "make a pair of keys for signing modules"),
    "export": (MODELS, "modules", "write a .qmod as C source, as ONNX, or as commands"),
    "status": (STUDIES, "studies", "list studies and their progress"),
    "dashboard": (STUDIES, "server", "show studies in a browser, live"),
    "report": (STUDIES, "studies", "write a study as one HTML page with all plots"),
    "trials": (STUDIES, "studies", "list the trials of a study"),
    "best": (STUDIES, "studies", "print the best trial of a study"),
    "compare": (STUDIES, "studies", "print studies side by side"),
    "try": (STUDIES, "studies", "have a configuration evaluated next"),
    "stop": (STUDIES, "studies", "end, pause or resume a running search"),
    "delete": (STUDIES, "studies", "delete a study"),
    "serve": (SERVER, "server", "run a server with a queue of studies"),
    "token": (SERVER, "server", "create or remove the token of a user of a server"),
    "submit": (SERVER, "queue", "queue a study on a server; run it again to resume"),
    "queue": (
        SERVER,
        "queue",
        "list the queue of a server; cancel a study",
    ),
    "skill": (SHELL, "shell", "print how an agent uses qsearch, step by step"),
    "completion": (SHELL, "shell", "print the completion script for bash, zsh or fish"),
}
"""Command -> heading in ``--help``, file beside this one, summary."""

COMPLETE: Final = "_QSEARCH_COMPLETE"
"""The variable with which a shell asks for completions."""


class Commands(click.Group):
    """All commands; the file of one is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name."""
        if name not in COMMANDS:
            return None
        _, file, _ = COMMANDS[name]
        function = f"{name.replace('-', '_')}_command"
        found: click.Command = getattr(import_module(f"qsearch.cli.{file}"), function)()
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--help`` and ``--version``; the command and its words are left."""
        ctx.args = click.Command.parse_args(self, ctx, args)
        return ctx.args

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str, click.Command, list[str]]:
        """Return the command of the first word, and the words behind it.

        Raises:
            click.UsageError: no such command.
        """
        command = self.get_command(ctx, args[0])
        if command is None:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return args[0], command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section a heading; no command's file is imported for it."""
        for heading in (SEARCH, MODELS, STUDIES, SERVER, SHELL):
            with formatter.section(heading):
                rows = [
                    (name, told) for name, (panel, _, told) in COMMANDS.items() if panel == heading
                ]
                formatter.write_dl(rows)


qsearch: Final = Commands(
    "qsearch",
    help="Search for the quantization of an ONNX model that keeps its accuracy, on integers only.",
    epilog="Exit codes: 0 done, 1 accuracy target missed (all is written), 2 bad input, "
    "3 the search failed, 130 interrupted (the best so far is written).",
    context_settings=CONTEXT,
    params=[click.Option(["--version"], is_flag=True, help="print the version")],
    subcommand_metavar="COMMAND …",
    no_args_is_help=False,
)


_SYSTEM_SAYS_NO: Final = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of the system about files; other errors of this kind are bugs of ours."""


def _help_width() -> int:
    """The columns of help, as ``shutil`` finds them, whose import takes a sixth of ``--help``."""
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if given.isdigit() else 0
    if not columns:
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size().columns
    return max(min(columns or 80, 100) - 2, 50)


def parse(words: Sequence[str]) -> click.Context:
    """The command that a command line names, with its parameters.

    Raises:
        click.UsageError: the words mean nothing.
        click.exceptions.Exit: help was asked for, and printed.
    """
    root = qsearch.make_context("qsearch", list(words), terminal_width=_help_width())
    if root.params.get("version"):
        print(f"qsearch {__version__}")
        root.exit()
    if not root.args:
        print(root.get_help())
        root.exit()
    name, command, rest = qsearch.resolve_command(root, root.args)
    context = command.make_context(name, rest, parent=root)
    _refuse_to_overwrite(context)
    return context


_OUTPUTS: Final = frozenset(("out", "space_out"))
"""Parameters that name a file to write."""


def _refuse_to_overwrite(context: click.Context) -> None:
    """Refuse to write to a file that the command reads.

    Raises:
        SettingsError: one file is named for both.
    """
    values = {name: v for name, v in context.params.items() if isinstance(v, str) and v}
    written = [v for name, v in values.items() if name in _OUTPUTS and os.path.isfile(v)]
    read = [v for name, v in values.items() if name not in _OUTPUTS and os.path.exists(v)]
    for target in written:
        if any(os.path.samefile(target, source) for source in read):
            from qsearch.errors import SettingsError

            raise SettingsError(
                f"{target} is what this command reads, and its result would replace it",
                where=context.command_path,
                fix="name another file for the result",
            )


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
        if instruction := os.environ.get(COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(qsearch, {}, "qsearch", COMPLETE, instruction)
        context = parse(words)
        with context:
            code = context.command.invoke(context)
            sys.stdout.flush()
            # most commands succeed or raise
            if code is None:
                return EXIT_OK
            return int(code)
    except click.exceptions.Exit as ended:  # --help and --version
        return ended.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "qsearch"
        fix = f"see {where} --help"
        print(f"error: {error.format_message()}\n  where: {where}\n  fix: {fix}", file=sys.stderr)
        return EXIT_BAD_INPUT
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
    import logging

    from compiler.errors import CompilerError
    from qsearch.errors import exit_code_of

    logging.getLogger("qsearch").debug("the command ended", exc_info=error)
    if isinstance(error, CompilerError):
        print(f"error: {masked(str(error))}", file=sys.stderr)
        return exit_code_of(error)
    if isinstance(error, MemoryError):
        return _out_of_memory(error, words)
    if isinstance(error, OSError) and error.errno in _SYSTEM_SAYS_NO:
        return _refused_by_system(error)
    return _unforeseen(error, words)


def _out_of_memory(error: MemoryError, words: Sequence[str]) -> int:
    """A file, or data, for which there is not enough memory, or not as much as the limit allows."""
    from compiler.at_work import last_node
    from qsearch.limits import fix_for

    told = f"error: there is not enough memory: {str(error) or 'an allocation failed'}\n"
    if name := last_node():
        told += f"  where: {name}\n"
    print(f"{told}  fix: {fix_for(words)}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _refused_by_system(error: OSError) -> int:
    """A file that cannot be read or written, or a disk that is full."""
    where = f"{error.filename or 'standard output, or a file that the command writes'}"
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more
    print(
        f"error: {error.strerror}\n  where: {where[:300]}\n"
        "  fix: check the path, its permissions and the space left, and run the same command again",
        file=sys.stderr,
    )
    return EXIT_BAD_INPUT


def _unforeseen(error: Exception, words: Sequence[str]) -> int:
    """A bug of ours or of --import: a few lines for the user, and the traceback with -vv."""
    import logging
    import traceback

    from workers.user_code import failure_in_user_code

    theirs = failure_in_user_code(error)
    told = theirs or (
        f"unforeseen {type(error).__name__}: {error}\n"
        "  fix: run the same command again (finished trials are kept); with -vv it shows where"
    )
    print(f"error: {masked(str(told))}", file=sys.stderr)
    logger = logging.getLogger("qsearch")
    if any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
        logger.info("unforeseen error", exc_info=error)
    if "-vv" in words or words.count("-v") > 1:
        traceback.print_exception(error)
    if theirs is None:
        return EXIT_SEARCH_FAILED
    return EXIT_BAD_INPUT
