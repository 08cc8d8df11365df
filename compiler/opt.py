"""``python -m compiler.opt -p FuseOps,… f.relay``: text → passes → text. ``--list``: all passes.

Golden tests run ``run_passes`` in process; people use it to see what a pass does.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from compiler.errors import CompilerError
from compiler.ir.instruments import DumpDir, NodeCountInstrument, TimingInstrument
from compiler.ir.pass_context import Instrument
from compiler.ir.pass_infra import Pass, PassContext, Sequential, create_pass, run_named
from compiler.ir.pass_text import format_value, split_passes
from compiler.ir.text.parser import MissingVersionWarning, parse
from compiler.ir.text.printer import text
from compiler.text_output import show
from compiler.transform import InferType, registered_passes

EXIT_BAD_INPUT = 2

HIGHEST_LEVEL = 4
"""The level that passes read, such as FuseOps, where the caller gives none."""


def run_passes(
    source: str,
    pipeline: str,
    *,
    opt_level: int | None = None,
    show_types: bool = False,
    show_meta: bool = True,
    source_name: str = "<text>",
    instruments: Sequence[Instrument] = (),
) -> str:
    """Parse ``source``, infer types, run the passes of ``pipeline`` and print the module.

    Args:
        source: Relay text; the version line may be left out.
        pipeline: names separated by commas, options in braces: ``FuseOps{max_depth=64}``.
        opt_level: passes of a higher level are left out; None runs every pass named.
        show_types: print ``/* ty=… */``.
        show_meta: print the metadata section.
        source_name: shown in errors.
        instruments: observe every pass, such as ``DumpDir(folder)``.

    Raises:
        CompilerError: the text, the pipeline or the module is wrong.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingVersionWarning)
        mod = parse(source, source_name=source_name)
    passes = [create_pass(spec) for spec in split_passes(pipeline)]
    level = HIGHEST_LEVEL if opt_level is None else opt_level
    with PassContext(opt_level=level, instruments=tuple(instruments), verify=True):
        mod = InferType()(mod)
        if opt_level is None:
            mod = run_named(mod, passes)
        else:
            mod = Sequential(passes)(mod)
    return text(mod, show_types=show_types, show_meta=show_meta)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code, 2 for input that is wrong."""
    parser = argument_parser()
    options = parser.parse_args(arguments)
    try:
        for word in options.imports:
            import_code(word)
    except ImportError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    if options.list:
        show(pass_table())
        return 0
    if options.file is None:
        parser.error("give a .relay file, or - for standard input; --list prints the passes")
    timing = TimingInstrument()
    counting = NodeCountInstrument()
    instruments: list[Instrument] = [timing, counting] if options.stats else []
    if options.dump_ir:
        instruments.append(DumpDir(Path(options.dump_ir)))
    try:
        if options.file == "-":
            source = sys.stdin.read()
        else:
            source = Path(options.file).read_text("utf-8")
        result = run_passes(
            source,
            options.passes,
            opt_level=options.opt_level,
            show_types=options.types,
            show_meta=not options.no_meta,
            source_name="<stdin>" if options.file == "-" else options.file,
            instruments=instruments,
        )
    except (CompilerError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    show(result)
    if options.stats:
        print(statistics(timing, counting), file=sys.stderr)
    return 0


def import_code(word: str) -> None:
    """Import a ``.py`` file, or a module by its dotted name.

    Raises:
        ImportError: there is none, or it imports what is not there.
    """
    path = Path(word)
    if path.suffix != ".py":
        importlib.import_module(word)
        return
    sys.path.insert(0, str(path.resolve().parent))
    importlib.import_module(path.stem)


def statistics(timing: TimingInstrument, counting: NodeCountInstrument) -> str:
    """A table of the passes that ran: nodes and calls before and after; and the time by name."""
    lines = [f"{'pass':32} {'nodes':>16} {'calls':>16}"]
    for name, before, after in counting.rows:
        nodes = f"{before.nodes} → {after.nodes}"
        calls = f"{before.calls} → {after.calls}"
        lines.append(f"{name:32} {nodes:>16} {calls:>16}")
    lines += [f"{name:32} {1e3 * spent:>13.1f} ms" for name, spent in timing.seconds.items()]
    return "\n".join(lines)


def pass_table() -> str:
    """A line for each registered pass: name, opt level, options with their defaults, summary."""
    rows = [
        (name, str(cls.info.opt_level), _options(cls), _summary(cls))
        for name, cls in registered_passes().items()
    ]
    rows.insert(0, ("pass", "level", "options", "what it does"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = []
    for name, level, options, summary in rows:
        lines.append(f"{name:{widths[0]}}  {level:>{widths[1]}}  {summary}")
        if options and name != "pass":
            lines.append(f"{'':{sum(widths) + 4}}{{{options}}}")
    return "\n".join(lines)


def _options(cls: type[Pass]) -> str:
    """``max_depth=256,link_params=False``; fields that text cannot give are left out."""
    if not dataclasses.is_dataclass(cls):
        return ""
    return ",".join(
        f"{field.name}={format_value(field.default)}"
        for field in dataclasses.fields(cls)
        if isinstance(field.default, (bool, int, float, str, tuple))
    )


def _summary(cls: type[Pass]) -> str:
    """First line of the docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def argument_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m compiler.opt", description="Run passes on a Relay text file and print it."
    )
    parser.add_argument("file", nargs="?", help="a .relay file, or - for standard input")
    parser.add_argument("-p", "--passes", default="", help="such as InferType,FoldConstant")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE",
        help="run a .py file or module first, such as one with passes of your own",
    )
    parser.add_argument("--opt-level", type=int, metavar="N", help="leave out passes above level N")
    parser.add_argument("--list", action="store_true", help="print every pass, then stop")
    parser.add_argument("--types", action="store_true", help="print inferred types as comments")
    parser.add_argument("--dump-ir", metavar="DIR", help="write the module after every pass")
    parser.add_argument("--stats", action="store_true", help="size and time of every pass")
    parser.add_argument("--no-meta", action="store_true", help="leave out the metadata section")
    return parser


if __name__ == "__main__":
    sys.exit(main())
