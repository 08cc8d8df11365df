"""A command is a function: its annotations are the options, its docstring is their help.

A command that shows the result of a function of the Python API has the options of both. The API is
read, not imported: ``--help`` must answer at once.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args, get_origin

import click

import qsearch
from qsearch.cli import CONTEXT
from qsearch.settings import parameters
from qsearch.settings.parameters import INPUT, OUTPUT, Parameter

_ALL: Final = "qsearch.all"
_VERBOSITY: Final = "qsearch.verbosity"
_PLAIN: Final = {"bool": bool, "int": int, "float": float, "str": str, "PathLike": str}
_METAVARS: Final = {"bool": "", "int": "N", "float": "X", "PathLike": "FILE"}


@dataclass(frozen=True, slots=True)
class Declared:
    """A parameter as its function declares it."""

    name: str
    annotation: str
    default: Any
    required: bool
    keyword: bool
    help: str


class Call:
    """A function of the Python API with the arguments of a command line.

    Attributes:
        given: the arguments; the function has defaults for those that were not given.
    """

    def __init__(self, function: str, given: dict[str, Any]) -> None:
        self.function = function
        self.given = given

    def __call__(self, **more: Any) -> Any:
        return getattr(qsearch, self.function)(**{**self.given, **more})


def command(
    behind: str = "",
    *,
    beside: str = "",
    own_code: bool = True,
    more: Iterable[click.Parameter] = (),
) -> Callable[[Callable[..., int | None]], Callable[[], click.Command]]:
    """Make a command of a function, which prints and returns the exit code.

    The function becomes one that gives the command: only the command that runs is read.

    Args:
        behind: name of the function of the Python API that it calls: the first argument, a
            ``Call``, has its arguments.
        beside: function of the same file whose keywords it has, too.
        own_code: the command has ``--import``.
        more: further options, whose values come as keywords.
    """

    def build(function: Callable[..., int | None]) -> click.Command:
        own, about = declared(function.__module__, function.__name__)
        called: list[Declared] = []
        if behind:
            from compiler.lazy_names import home_of

            called, _ = declared(home_of("qsearch", behind), behind)
            own = own[1:]
        if beside:
            listed, _ = declared(function.__module__, beside)
            own += [each for each in listed if each.keyword]
        names = [each.name for each in called if option_of(each) is not None]

        def run(**values: Any) -> int | None:
            if not behind:
                return function(**values)
            given = {name: values.pop(name) for name in names}
            known = {name: value for name, value in given.items() if value not in (None, ())}
            return function(Call(behind, known), **values)

        options = [option_of(each) for each in (*called, *own)]
        params = [each for declaration in options if declaration for each in declaration]
        if own_code:
            params.append(_OWN_CODE)
        return Command(function.__name__, [*params, *more], callback=run, help=about)

    return lambda function: cache(partial(build, function))


# Reading a function -------------------------------------------------------------------------------


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def declared(module: str, name: str) -> tuple[list[Declared], str]:
    """Return the parameters of a function, and its docstring up to ``Args:``."""
    function = _functions(module)[name]
    about, texts = _described(ast.get_docstring(function) or "")
    arguments = [*function.args.args, *function.args.kwonlyargs]
    given = [None] * (len(function.args.args) - len(function.args.defaults))
    defaults = [*given, *function.args.defaults, *function.args.kw_defaults]
    found = []
    for place, (argument, default) in enumerate(zip(arguments, defaults, strict=True)):
        if argument.annotation:
            annotation = ast.unparse(argument.annotation)
        else:
            annotation = ""
        try:
            value = None if default is None else ast.literal_eval(default)
        except ValueError:  # a name: a parameter that is no option
            value = None
        text = texts.get(argument.arg, "")
        keyword = place >= len(function.args.args)
        found.append(Declared(argument.arg, annotation, value, default is None, keyword, text))
    return found, about


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a docstring up to ``Args:``, and the text of each argument behind it."""
    about, _, rest = docstring.partition("\nArgs:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in rest.splitlines():
        if not line.startswith("    "):
            break
        head, colon, text = line.strip().partition(": ")
        if colon and not line.startswith("        "):
            names = head.split(", ")
            line = text
        for name in names:
            texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return about.partition("\nRaises:\n")[0].partition("\nReturns:\n")[0].strip(), texts


def option_of(given: Declared) -> list[click.Parameter] | None:
    """Return what the command line has for a parameter; None where it is of Python alone."""
    name = given.annotation.removesuffix(" | None")
    choices: tuple[str, ...] = ()
    kind: Any = str
    if name.startswith("Literal["):
        choices = tuple(ast.literal_eval(name.removeprefix("Literal")))
        form = Parameter("|".join(choices), OUTPUT)
    elif name in _PLAIN:
        kind = _PLAIN[name]
        form = Parameter(_METAVARS.get(name, given.name.rpartition("_")[2].upper()))
    else:
        shared: Any = getattr(parameters, name, None)
        if not hasattr(shared, "__metadata__"):
            return None
        kind = shared.__origin__
        form = shared.__metadata__[0]
        if form.several:
            each = next(iter(get_args(kind)), None)
        else:
            each = kind
        if get_origin(each) is Literal:
            choices = get_args(each)
    text = with_default(given.help or form.help, given.default)
    own: dict[str, Any]
    if form.positional and form.several:
        own = {"nargs": -1, "required": True, "metavar": form.metavar, "help": text}
        return [click.Argument([given.name], **own)]
    fields: dict[str, Any] = {"type": _click_type(kind, form, choices), "metavar": form.metavar}
    if name == "Model":
        return _model(given, text)
    if form.positional:
        shown = form.metavar if given.required else f"[{form.metavar}]"
        own = {"metavar": shown, "required": given.required, "help": text}
        return [click.Argument([given.name], **{**fields, **own})]
    flags = form.flags or (f"--{given.name.rstrip('_').replace('_', '-')}",)
    if kind is bool:
        fields = {"is_flag": True}
    elif form.several:
        fields["multiple"] = True
    if name == "Qconfig":
        fields["callback"] = _joined
    elif not form.several and kind is not bool:
        fields["default"] = given.default
    own = {"required": given.required, "help": text}
    return [Option([*flags, given.name], form.panel, form.everyday, **fields, **own)]


def with_default(text: str, default: Any) -> str:
    """Return a help text with the default in parentheses, where it does not say it already."""
    if default in (None, "", ()) or isinstance(default, bool) or text.endswith(")"):
        return text
    if isinstance(default, float):
        return f"{text} ({default:g})"
    return f"{text} ({default})"


def _click_type(kind: Any, form: Parameter, choices: Sequence[str]) -> Any:
    if choices:
        return click.Choice(choices)
    if form.least is not None:
        return click.IntRange(form.least)
    if kind in (int, float):
        return kind
    if any(word.isupper() for word in form.metavar.replace(".", "|").split("|")):
        return _FileName()
    return str


class _FileName(click.ParamType[str]):
    """A text that the shell completes as a file; the command checks it."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Ask the shell for files."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def _joined(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> str | None:
    """Join configurations; "auto" is what the others change, wherever it stands."""
    return ",".join(sorted(dict.fromkeys(given), key="auto".__ne__)) or None


def _model(given: Declared, text: str) -> list[click.Parameter]:
    """Return the argument M and the option ``--model M``, one of which names the model."""

    def once(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        told = ctx.params.setdefault(given.name, value)
        if value is None or told == value:
            return
        if told is not None:
            raise click.UsageError(f"the model is given twice: {told!r} and {value!r}", ctx)
        ctx.params[given.name] = value

    own: dict[str, Any] = {"metavar": "M", "callback": once, "expose_value": False}
    own["type"] = _FileName()
    word = click.Argument(["model_word"], required=False, help=text, **{**own, "metavar": "[M]"})
    same = "the same as the argument M"
    return [word, Option(["--model", "model_option"], INPUT, True, help=same, **own)]


def named_model(given: str | None) -> str:
    """Return the model that was given.

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


# Click's classes with headings --------------------------------------------------------------------


class Option(click.Option):
    """An option under a heading of ``--help``, or of ``--help-all``."""

    def __init__(
        self, names: Sequence[str], panel: str = OUTPUT, everyday: bool = True, **fields: Any
    ) -> None:
        super().__init__(names, **fields)
        self.panel = panel
        self.everyday = everyday

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return Click's additions to the help: not the range of a number."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command whose options have headings. Each has ``--help-all``, ``-q`` and ``-v``."""

    def __init__(self, name: str, params: Sequence[click.Parameter], **fields: Any) -> None:
        own = [*params, *_OF_EVERY_COMMAND]
        super().__init__(name, params=own, context_settings=CONTEXT, **fields)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each heading, in the order of the declarations; Output is last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = 0
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            if ctx.meta.get(_ALL) or getattr(param, "everyday", True):
                sections.setdefault(getattr(param, "panel", OUTPUT), []).append(record)
            else:
                left_out += param is not _HELP_ALL
        if OUTPUT in sections:
            sections[OUTPUT] = sections.pop(OUTPUT)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=30)
        if left_out:
            formatter.write(f"\n  Defaults are in parentheses. --help-all shows {left_out} more.\n")


def _print_all(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        print(ctx.get_help())
        ctx.exit()


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    if not value:
        return
    if _VERBOSITY in ctx.meta and not ctx.resilient_parsing:
        raise click.UsageError("-q and -v exclude each other", ctx)
    ctx.meta[_VERBOSITY] = -1 if param.name == "quiet" else min(value, 2)


def given_verbosity() -> int | None:
    """-1 (quiet) to 2, of the command that runs; None when nothing was said."""
    told: int | None = click.get_current_context().meta.get(_VERBOSITY)
    return told


def _import(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> None:
    """Run the user's modules before the command; QSEARCH_IMPORT names some where no option does."""
    words = value or tuple(filter(None, os.environ.get("QSEARCH_IMPORT", "").split(";")))
    if words and not ctx.resilient_parsing:
        from workers.user_code import import_user_code

        find_user_code()
        import_user_code(words)


def find_user_code() -> None:
    """Let modules beside the command be imported; behind all else, so that they hide no others."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


_OWN_CODE: Final = Option(
    ["--import", "imports"],
    INPUT,
    everyday=False,
    metavar="MODULE",
    multiple=True,
    expose_value=False,
    callback=_import,
    help="your code, run first: a .py file or a dotted module; repeatable",
)
_HELP_ALL: Final = Option(
    ["--help-all"],
    everyday=False,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="show every option and exit",
)
_OF_EVERY_COMMAND: Final = (
    Option(
        ["-q", "--quiet"],
        is_flag=True,
        help="print errors only",
        expose_value=False,
        callback=_set_verbosity,
    ),
    Option(
        ["-v", "--verbose"],
        help="print more to stderr; -vv: everything, with tracebacks",
        type=int,
        count=True,
        expose_value=False,
        callback=_set_verbosity,
    ),
    _HELP_ALL,
)
