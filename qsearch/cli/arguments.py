"""argparse with our manners: both spellings of a flag, errors that name the nearest legal one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from qsearch.errors import SettingsError


class Parser(argparse.ArgumentParser):
    """Raises SettingsError where argparse would print and exit."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Turn argparse's message into ours.

        Raises:
            SettingsError: always.
        """
        from qsearch.errors import SettingsError

        raise SettingsError(message, where=self.prog, fix=f"see {self.prog} --help")

    def flags(self) -> list[str]:
        """Every option string this parser knows."""
        return [flag for action in self._actions for flag in action.option_strings]

    def values(self) -> dict[str, list[str]]:
        """The legal words after a flag, where there are some; those of a place are under ""."""
        found: dict[str, list[str]] = {}
        for action in self._actions:
            listed = str(action.metavar).split("|") if action.option_strings else []
            words = [str(word) for word in action.choices or (listed if len(listed) > 1 else ())]
            if words:
                flags = [flag for flag in action.option_strings if flag.startswith("--")]
                found.update(dict.fromkeys(flags or [""], words))
        return found

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse a whole command line; unknown options name the nearest known ones.

        Raises:
            SettingsError: anything that does not parse.
        """
        words = with_hyphens(words)
        command, flags = self._chosen(words)
        for word in words[: words.index("--")] if "--" in words else words:
            # Before argparse, which may blame what follows an unknown option instead.
            if word.startswith("--") and word.partition("=")[0] not in flags:
                command.refuse(word)
        known, rest = self.parse_known_args(words)
        if rest:
            command.refuse(rest[0])
        return known

    def _chosen(self, words: Sequence[str]) -> tuple[Parser, set[str]]:
        """The innermost command that is named, and all options up to it."""
        command, flags = self, set(self.flags())
        for word in words:
            choices = [a.choices for a in command._actions if isinstance(a.choices, dict)]
            if choices and isinstance(choices[0].get(word), Parser):
                command = choices[0][word]
                flags.update(command.flags())
        return command, flags

    def refuse(self, word: str) -> NoReturn:
        """Say that a word of the command line means nothing here.

        Raises:
            SettingsError: always; of an option it names the nearest known one.
        """
        option = word.partition("=")[0]
        if not option.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        from compiler.errors import nearest
        from qsearch.errors import SettingsError

        close = nearest(option, self.flags())
        hint = f"did you mean {close[0]}? " if close else ""
        raise SettingsError(
            f"unknown option {option}", where=self.prog, fix=f"{hint}see {self.prog} --help"
        )


class _InputShape(argparse.Action):
    """``--input-shape x=1,3,8,8`` as sizes of the axes of x, in the list ``--dim`` fills."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        name, equals, sizes = str(values).rpartition("=")
        if not equals:
            parser.error(f"--input-shape needs NAME=N,N,…, got {values!r}")
        words = [f"{name}:{axis}={size.strip()}" for axis, size in enumerate(sizes.split(","))]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or []), *words])


class _Once(argparse.Action):
    """A value that may be given as a flag or as a word, but not twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"unexpected argument {values!r}")
        setattr(namespace, self.dest, values)


def add_dims(parser: Parser) -> None:
    """``--dim`` and ``--input-shape``: sizes the model leaves open; both repeatable."""
    parser.add_argument(
        "--dim",
        metavar="NAME=N",
        action="append",
        help="size of a named dimension, or of an axis of an input (x:2=128); repeatable",
    )
    parser.add_argument(
        "--input-shape",
        metavar="NAME=N,N,…",
        action=_InputShape,
        dest="dim",
        default=argparse.SUPPRESS,
        help="whole shape of an input; repeatable",
    )


def add_model(parser: Parser) -> None:
    """The model: ``--model M``, or only ``M``."""
    what = "an .onnx file, or `digits`, which ships with the package"
    parser.add_argument("--model", metavar="M", action=_Once, help=what)
    parser.add_argument(
        "model", metavar="M", nargs="?", default=argparse.SUPPRESS, action=_Once, help="the same"
    )


def model_of(args: argparse.Namespace) -> str:
    """What ``add_model`` read.

    Raises:
        SettingsError: nothing.
    """
    if args.model is None:
        from qsearch.errors import SettingsError

        raise SettingsError(
            "no model was given",
            where=f"qsearch {args.command}",
            fix="--model m.onnx, or --model digits for the one that ships with the package",
        )
    return str(args.model)


def add_hardware(parser: Parser) -> None:
    """``--hw``: an accelerator by the name of a shipped description, or a file of one's own."""
    parser.add_argument(
        "--hw", metavar="FILE|opu|opu_q|npu", help="group operators for this accelerator"
    )


def with_hyphens(words: Sequence[str]) -> list[str]:
    """``--max_drop=1%`` and ``--max-drop=1%`` are the same."""
    result: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            return [*result, *words[index:]]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = name.replace("_", "-") + equals + value
        result.append(word)
    return result


def unknown_command(word: str, commands: Sequence[str]) -> SettingsError:
    """What ``qsearch lunch`` is told."""
    from compiler.errors import legal_names
    from qsearch.errors import SettingsError

    return SettingsError(
        f"unknown command {word!r}", where="qsearch", fix=legal_names(word, commands)
    )


def at_least(low: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers from ``low`` on."""

    def convert(word: str) -> int:
        if not word.removeprefix("-").isdigit() or int(word) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number >= {low}, got {word!r}")
        return int(word)

    return convert


def add_study(parser: argparse.ArgumentParser) -> None:
    """Which study: a run folder, or a storage and a name."""
    parser.add_argument("folder", metavar="DIR", nargs="?", help="run folder (the one in runs)")
    parser.add_argument("--storage", metavar="URL", help="storage, instead of a run folder's")
    parser.add_argument("--study", metavar="NAME", help="which study, if there are several")


def study_of(args: argparse.Namespace) -> dict[str, Any]:
    """What ``add_study`` read, as the functions of ``api`` take it.

    Where nothing was told, what was found is said on stderr.
    """
    from qsearch import api

    found = api.find_study(args.folder, storage=args.storage, study=args.study)
    if args.folder is None and args.storage is None:
        where = "QSEARCH_STORAGE" if found.folder is None else found.folder
        print(f"found in {where}", file=sys.stderr)
    return {"folder": found.folder, "storage": found.storage, "study": found.name}


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """``-q`` and ``-v``, as every command has them."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-q", "--quiet", action="store_const", const=-1, dest="verbosity", help="errors only"
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        dest="more",
        help="more on stderr; twice for everything, with tracebacks",
    )


def verbosity_of(args: argparse.Namespace) -> int | None:
    """-1 (quiet) to 2; None when nothing was said."""
    if args.verbosity is not None:
        return -1
    return min(int(args.more), 2) if args.more else None
