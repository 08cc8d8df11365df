"""Click with panels in ``--help``, both spellings of a flag, and errors that name the nearest one.

Nothing heavy is imported here or at the top of a command's file: ``--help`` must answer at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from click.types import OptionHelpExtra

    from qsearch.errors import SettingsError
    from qsearch.opening.open_model import DataSource

Decorator = Callable[[Any], Any]

INPUT: Final = "Model and data"
OPTIONS: Final = "Options"
STUDY: Final = "Study"
OUTPUT: Final = "Output"
_GIVEN: Final = "qsearch.words"


def _with_hyphens(name: str) -> str:
    """``--max_drop`` and ``--max-drop`` are the same."""
    return name.replace("_", "-")


CONTEXT: Final = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": _with_hyphens,
    "allow_extra_args": True,
}
"""Settings of every command line."""


class Option(click.Option):
    """An option under a heading of ``--help``."""

    def __init__(
        self, names: Sequence[str], *args: Any, panel: str = OPTIONS, **attributes: Any
    ) -> None:
        super().__init__(names, *args, **attributes)
        self.panel = panel

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return Click's additions to the help: not the range of a number."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Suggested(click.ParamType[str]):
    """A text that the shell completes; the command checks the value.

    Args:
        metavar: what stands for the value: legal words with ``|`` between them. Words in capitals
            stand for files.
        words: legal words, where the metavar does not name them.
    """

    name = "text"

    def __init__(self, metavar: str, words: Sequence[str] = ()) -> None:
        named = metavar.split("|")
        told = [word for word in named if word.islower()] if len(named) > 1 else []
        self._words = words or told
        self._files = not words and any(map(str.isupper, named))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words, and files where a file may stand."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(word) for word in self._words if word.startswith(incomplete)]
        return found + ([CompletionItem(incomplete, type="file")] if self._files else [])


class Choice(click.Choice[str]):
    """One of some words; an error names the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """The error for a word that is not among the choices."""
        from compiler.errors import legal_names

        return f"{value!r} is unknown: {legal_names(str(value), self.choices)}"


class Command(click.Command):
    """A command whose options stand under headings, and whose errors are ours.

    Each has ``-q`` and ``-v``, behind its own options.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["context_settings"] = CONTEXT
        attributes.setdefault("epilog", "Defaults are in parentheses.")
        super().__init__(*args, **attributes)
        self.params += _VERBOSITY_OPTIONS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a whole command line; unknown options name the nearest known ones.

        Raises:
            SettingsError: anything that does not parse.
        """
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        ctx.meta[_GIVEN] = tuple(args)
        _check_options(ctx, args, self.get_params(ctx))
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _refusal(error, ctx) from error
        if rest:
            raise refused(ctx, f"unexpected argument {rest[0]!r}")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each panel, in the order they are declared."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "panel", OUTPUT), []).append(record)
        if OUTPUT in sections:
            sections[OUTPUT] = sections.pop(OUTPUT)  # last
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)


def _check_options(ctx: click.Context, words: Sequence[str], params: Sequence[object]) -> None:
    """Find unknown options and missing values before the parser blames what follows them."""
    options = [param for param in params if isinstance(param, click.Option)]
    known = {name for option in options for name in option.opts}
    valued = {name for o in options if not (o.is_flag or o.count) for name in o.opts}
    place = 0
    while place < len(words) and words[place] != "--":
        given, equals, _ = words[place].partition("=")
        name = _with_hyphens(given)
        if name.startswith("--") and name not in known:
            raise unknown_option(ctx, name, known)
        if name in valued and not equals:
            place += 1
            if place == len(words) or words[place] in known or words[place].startswith("--"):
                raise refused(ctx, f"{name} needs a value")
        place += 1


def unknown_option(ctx: click.Context, name: str, known: Iterable[str]) -> SettingsError:
    """The error for an option such as ``--modle``, or for one of other commands."""
    from compiler.errors import nearest
    from qsearch.errors import SettingsError

    path = ctx.command_path
    group = ctx.find_root().command
    words = {option.lstrip("-"): option for option in known}
    close = nearest(name.lstrip("-"), words)
    hint = f"did you mean {words[close[0]]}? " if close else ""
    if isinstance(group, click.Group):
        every = {n: group.get_command(ctx, n) for n in group.list_commands(ctx)}
        others = [n for n, c in every.items() if c and any(name in p.opts for p in c.params)]
        hint = f"an option of {', '.join(others[:3])}; " if others else hint
    return SettingsError(f"unknown option {name}", where=path, fix=f"{hint}see {path} --help")


def refused(ctx: click.Context, what: str) -> SettingsError:
    """An error of the command line, with where to look."""
    from qsearch.errors import SettingsError

    return SettingsError(what, where=ctx.command_path, fix=f"see {ctx.command_path} --help")


def _refusal(error: click.UsageError, ctx: click.Context) -> SettingsError:
    """A SettingsError with Click's message."""
    if isinstance(error, click.NoSuchOption):
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts]
        return unknown_option(ctx, error.option_name, known)
    spelled = ""
    if isinstance(error, click.BadParameter) and error.param is not None:
        given = error.param
        named = isinstance(given, click.Option)
        spelled = "/".join(given.opts) if named else given.make_metavar(ctx)
    if isinstance(error, click.MissingParameter):
        return refused(ctx, f"{spelled} is missing")
    what = error.message.rstrip(".")
    return refused(ctx, f"{spelled}: {what}" if spelled else what)


# Declarations -----------------------------------------------------------------------------------


Callback = Callable[[click.Context, click.Parameter, Any], Any]
Kind = click.ParamType[Any] | type[int] | type[float]


class ArgumentFields(TypedDict, total=False):
    """Keywords of Click that a positional value takes."""

    type: Kind
    required: bool
    nargs: int
    callback: Callback
    expose_value: bool


class OptionFields(ArgumentFields, total=False):
    """Keywords that an option takes beside them."""

    panel: str
    default: object
    multiple: bool
    is_flag: bool


def argument(name: str, metavar: str, help: str, **fields: Unpack[ArgumentFields]) -> Decorator:
    """A positional value."""
    fields.setdefault("type", Suggested("FILE"))
    wanted = fields.get("required", fields.get("nargs") != -1)
    shown = metavar if wanted else f"[{metavar}]"
    return click.argument(name, metavar=shown, help=help, **fields)


def option(
    *names: str,
    metavar: str = "",
    words: Sequence[str] = (),
    help: str,
    **fields: Unpack[OptionFields],
) -> Decorator:
    """An option; one without a metavar is a switch. The shell completes ``words``."""
    if metavar:
        fields.setdefault("type", Suggested(metavar, words))
    elif "type" not in fields:
        fields.setdefault("is_flag", True)
    return click.option(*names, cls=Option, metavar=metavar or None, help=help, **fields)


count: Final = partial(option, metavar="N", type=click.IntRange(1))
"""An option that takes a number from 1 up."""
output: Final = partial(option, "-o", "--out", "--output", metavar="FILE", panel=OUTPUT)
"""Option of the written file, as the parameter ``out``."""
_collected: Final = partial(option, panel=INPUT, multiple=True, expose_value=False)
"""An option that may be given several times; its callback says what becomes of the values."""


def stacked(*decorators: Decorator) -> Decorator:
    """Several declarations as one, in the order they are given."""

    def declare(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return declare


def grouped(name: str, build: Callable[..., Any], *decorators: Decorator) -> Decorator:
    """Options that mean one thing together, as one parameter of the command.

    Args:
        name: of the parameter.
        build: gives its value; its own parameters are those of the options.
        decorators: declare the options, in the order of ``--help``.
    """
    parts = tuple(inspect.signature(build).parameters)

    def declare(function: Any) -> Any:
        @wraps(function)
        def command(**given: Any) -> Any:
            value = build(**{part: given.pop(part) for part in parts})
            return function(**given, **{name: value})

        return stacked(*decorators)(command)

    return declare


def _given_once(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    """A value that may be given as an option or as a word, but not twice."""
    for word in value:
        told = ctx.params.get("model")
        if told is not None and not ctx.resilient_parsing:
            words = [given.removeprefix("--model=") for given in ctx.meta[_GIVEN]]
            later = word if words[::-1].index(word) <= words[::-1].index(told) else told
            raise refused(ctx, f"unexpected argument {later!r}")
        ctx.params["model"] = word
    ctx.params.setdefault("model", None)


MODEL_HELP: Final = "an .onnx file, or `digits`, which ships with the package"
model: Decorator = stacked(
    argument("model_word", "M", MODEL_HELP, nargs=-1, expose_value=False, callback=_given_once),
    _collected(
        "--model",
        "model_option",
        metavar="M",
        help="the same as the argument M",
        callback=_given_once,
    ),
)
"""The model, ``--model M`` or only ``M``, as the parameter ``model``."""


def named_model(given: str | None) -> str:
    """The model that was given.

    Raises:
        SettingsError: there is none.
    """
    if given is None:
        from qsearch.errors import SettingsError

        raise SettingsError(
            "no model was given",
            where=click.get_current_context().command_path,
            fix="--model m.onnx, or --model digits for the one that ships with the package",
        )
    return given


dims: Decorator = option(
    "--dim",
    metavar="NAME=N",
    multiple=True,
    help="size of a named dimension, or of one axis of an input (x:2=128), where the arrays of the "
    "data do not say it; repeatable",
    panel=INPUT,
)


def _cut(*names: str, help: str, metavar: str = "NODE") -> Decorator:
    return option(*names, metavar=metavar, multiple=True, help=f"{help}; repeatable", panel=INPUT)


cuts: Decorator = stacked(
    _cut("--until", help="node or tensor that the quantized part ends with; the rest is float"),
    _cut("--from", "from_", help="node that it begins with, or tensor that it takes"),
    _cut("--set-input", metavar="NAME=VALUE", help="an input that is always this value (sr=16000)"),
)
"""Options that cut a model by hand, as the parameters ``until``, ``from_`` and ``set_input``."""


def _import(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    """Run the user's modules before the command; QSEARCH_IMPORT names some where no option does."""
    words = value or tuple(filter(None, os.environ.get("QSEARCH_IMPORT", "").split(";")))
    if words and not ctx.resilient_parsing:
        from workers.user_code import import_user_code

        find_user_code()
        import_user_code(words)


def find_user_code() -> None:
    """Modules beside the command can be imported; behind all else, so that they hide no others."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


imports: Decorator = _collected(
    "--import",
    "imports",
    metavar="MODULE",
    help="your code, run first: a .py file or a dotted module that registers operators, calibrate "
    "modes, …; repeatable",
    callback=_import,
)
"""Modules of the user that the command imports first."""

searched: Decorator = stacked(
    option("--allow-float", help="as for launch, with --space-out", panel=OUTPUT, default=None),
    option("--minimize", metavar="COSTS", help="as for launch, with --space-out", panel=OUTPUT),
    option("--max-size", metavar="B", help="as for launch, with --space-out", panel=OUTPUT),
)
"""Settings of launch that decide what it searches."""

hardware: Decorator = option(
    "--hw", metavar="FILE|opu|opu_q|npu", help="group operators for this accelerator"
)
"""An accelerator, by the name of a shipped description or a file of one's own."""

calib: Decorator = option("--calib", metavar="C", help="calibration data (synthetic)", panel=INPUT)
preprocess: Decorator = option(
    "--preprocess", metavar="FILE", help="how an image becomes the input", panel=INPUT
)
seed: Decorator = option(
    "--seed", metavar="S", type=int, default=0, help="seed of synthetic data (0)", panel=INPUT
)


def _source(data: str | None, preprocess: str | None, seed: int = 0) -> DataSource:
    from qsearch.opening.open_model import DataSource

    return DataSource(data, preprocess, seed)


calib_data: Decorator = grouped(
    "calib",
    lambda calib, preprocess, seed: _source(calib, preprocess, seed),
    calib,
    preprocess,
    seed,
)
"""Calibration data, how its images are read and the seed, as the parameter ``calib``."""


def eval_data(help: str) -> Decorator:
    """``--eval`` and how its images are read, as the parameter ``data``, a ``DataSource``."""
    given = option("--eval", metavar="E", help=help, panel=INPUT)
    return grouped("data", lambda eval, preprocess: _source(eval, preprocess), given, preprocess)


rows_format: Decorator = option(
    "-f",
    "--format",
    type=Choice(("table", "json", "csv")),
    default="table",
    help="format of the rows (table)",
    panel=OUTPUT,
)

as_json: Decorator = option("--json", "as_json", help="print one JSON object", panel=OUTPUT)


_VERBOSITY: Final = "qsearch.verbosity"


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    if not value:
        return
    if _VERBOSITY in ctx.meta and not ctx.resilient_parsing:
        raise refused(ctx, "-q and -v exclude each other")
    ctx.meta[_VERBOSITY] = -1 if param.name == "quiet" else min(value, 2)


def given_verbosity() -> int | None:
    """-1 (quiet) to 2, of the command that runs; None when nothing was said."""
    told: int | None = click.get_current_context().meta.get(_VERBOSITY)
    return told


_KEPT: Final[dict[str, Any]] = {"expose_value": False, "callback": _set_verbosity}
_VERBOSITY_OPTIONS: Final = (
    Option(["-q", "--quiet"], is_flag=True, help="print errors only", panel=OUTPUT, **_KEPT),
    Option(
        ["-v", "--verbose"],
        help="print more to stderr; -vv: everything, with tracebacks",
        panel=OUTPUT,
        type=int,
        count=True,
        **_KEPT,
    ),
)

server: Decorator = option(
    "--server",
    metavar="URL",
    help="ask this `qsearch serve`, with the token in QSEARCH_TOKEN; DIR is then the study's name",
    panel=STUDY,
)
"""A server, in place of a run folder or storage."""
