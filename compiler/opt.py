"""``python -m compiler.opt -p FuseOps,… f.relay``: text → passes → text.

Golden tests run ``run_passes`` in process; people use it to see what a pass does.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from compiler.errors import CompilerError
from compiler.ir.instruments import DumpDir, NodeCountInstrument, TimingInstrument
from compiler.ir.parser import MissingVersionWarning, parse
from compiler.ir.pass_context import Instrument
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.ir.printer import text
from compiler.text_output import show
from compiler.transform import InferType

EXIT_BAD_INPUT = 2


def run_passes(
    source: str,
    pipeline: str,
    *,
    opt_level: int = 4,
    show_types: bool = False,
    show_meta: bool = True,
    source_name: str = "<text>",
    instruments: Sequence[Instrument] = (),
) -> str:
    """Parse ``source``, infer types, run the passes of ``pipeline`` and print the module.

    Args:
        source: Relay text; the version line may be left out.
        pipeline: names separated by commas, options in braces: ``FuseOps{max_depth=64}``.
        opt_level: passes of a higher level are left out; the default runs every pass named.
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
    passes = Sequential.from_text(pipeline)
    with PassContext(opt_level=opt_level, instruments=tuple(instruments), verify=True):
        return text(passes(InferType()(mod)), show_types=show_types, show_meta=show_meta)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code, 2 for input that is wrong."""
    options = argument_parser().parse_args(arguments)
    timing, counting = TimingInstrument(), NodeCountInstrument()
    instruments: list[Instrument] = [timing, counting] if options.stats else []
    if options.dump_ir:
        instruments.append(DumpDir(Path(options.dump_ir)))
    try:
        source = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
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


def statistics(timing: TimingInstrument, counting: NodeCountInstrument) -> str:
    """A table of the passes that ran: nodes and calls before and after; and the time by name."""
    lines = [f"{'pass':32} {'nodes':>16} {'calls':>16}"]
    for name, before, after in counting.rows:
        nodes, calls = f"{before.nodes} → {after.nodes}", f"{before.calls} → {after.calls}"
        lines.append(f"{name:32} {nodes:>16} {calls:>16}")
    lines += [f"{name:32} {1e3 * spent:>13.1f} ms" for name, spent in timing.seconds.items()]
    return "\n".join(lines)


def argument_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m compiler.opt", description="Run passes on a Relay text file and print it."
    )
    parser.add_argument("file", help="a .relay file, or - for standard input")
    parser.add_argument("-p", "--passes", default="", help="such as InferType,FoldConstant")
    parser.add_argument("--opt-level", type=int, default=4, help="leave out passes above it")
    parser.add_argument("--types", action="store_true", help="print inferred types as comments")
    parser.add_argument("--dump-ir", metavar="DIR", help="write the module after every pass")
    parser.add_argument("--stats", action="store_true", help="size and time of every pass")
    parser.add_argument("--no-meta", action="store_true", help="leave out the metadata section")
    return parser


if __name__ == "__main__":
    sys.exit(main())
