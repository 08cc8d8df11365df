"""``python -m qsearch.dashboard.inspector``: a question (JSON) a line, an exit code a line.

A child answers every question into the file that it names, and limits itself before it opens
anything. Exit code 2 with ``{what, where, fix}`` is a file that cannot be used.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from compiler.errors import CompilerError
from compiler.insight import layer_sqnr
from compiler.ir.blob import ModuleBlob
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import ChannelStats
from qsearch.dashboard.histograms import arrays_of
from qsearch.dashboard.inspection import EXIT_BAD_FILE
from qsearch.search.winner import runs_of

NICE: Final = 5


def module(options: dict[str, Any]) -> dict[str, Any]:
    """The functions of a .qmod as drawings; see ``module_view``."""
    from qsearch.dashboard.module_view import drawing_of

    return drawing_of(Path(options["file"]), options["groups"])


def text(options: dict[str, Any]) -> dict[str, Any]:
    """The IR text and the facts of a .qmod."""
    from qsearch.search.winner import text_of

    return text_of(Path(options["file"]))


def proof(options: dict[str, Any]) -> dict[str, Any]:
    """What is proved of a .qmod, derived again."""
    from qsearch.dashboard.module_view import proof_of

    return proof_of(Path(options["file"]))


def times(options: dict[str, Any]) -> dict[str, Any]:
    """CPU microseconds of every layer of a .qmod on the integer engine."""
    from qsearch.modules.profiling import profile

    found = profile(options["file"], rounds=5)
    layers = [{"layer": layer.layer, "us": 1e3 * layer.ms} for layer in found.layers]
    return {"isa": found.isa, "layers": layers}


def export(options: dict[str, Any]) -> dict[str, Any]:
    """Write a .qmod as C or ONNX into a zip; where it is."""
    from qsearch.dashboard.module_view import exported

    return exported(Path(options["file"]), options["format"], Path(options["out"]))


def histograms(options: dict[str, Any]) -> dict[str, Any]:
    """Histograms of every quantize point from stored statistics, with stored thresholds."""
    from qsearch.dashboard.histograms import histograms_of

    scales = options["scales"]
    return histograms_of(Path(options["file"]), None if scales is None else Path(scales))


def layers(options: dict[str, Any]) -> dict[str, Any]:
    """SQNR of what every layer of a stored module reads under a configuration."""

    def path(name: str) -> Path | None:
        return None if options[name] is None else Path(options[name])

    return layers_of(
        Path(options["file"]),
        options["qconfig"],
        Path(options["inputs"]),
        path("scales"),
        path("channels"),
    )


def onnx(options: dict[str, Any]) -> dict[str, Any]:
    """What an uploaded model says of itself."""
    from qsearch.dashboard.uploaded import about_onnx

    return about_onnx(Path(options["file"]))


def npz(options: dict[str, Any]) -> dict[str, Any]:
    """Names and shapes of an uploaded archive of arrays."""
    from qsearch.dashboard.uploaded import about_npz

    return about_npz(Path(options["file"]))


def npy(options: dict[str, Any]) -> dict[str, Any]:
    """Shape of an uploaded array."""
    from qsearch.dashboard.uploaded import about_npy

    return about_npy(Path(options["file"]))


def zip(options: dict[str, Any]) -> dict[str, Any]:
    """What an uploaded folder of images unpacks to, from its directory alone."""
    from qsearch.dashboard.uploaded import about_zip

    return about_zip(Path(options["file"]))


def unpack(options: dict[str, Any]) -> dict[str, Any]:
    """Unpack an uploaded folder of images; how many, of how many classes."""
    from qsearch.dashboard.uploaded import unpack_images

    return unpack_images(Path(options["file"]), Path(options["out"]))


TASKS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    task.__name__: task
    for task in (
        module,
        text,
        proof,
        times,
        export,
        histograms,
        layers,
        onnx,
        npz,
        npy,
        zip,
        unpack,
    )
}


def serve() -> None:
    """Answer a question a line until the server goes away; each in a child of its own."""
    # What every task needs is imported once, before the first question.
    import qsearch.dashboard.module_view  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(answer(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def answer(options: dict[str, Any]) -> int:
    """Write the answer to one question into a file; the exit code."""
    limit = int(options["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A search on this machine goes first.
    os.nice(NICE)
    code = 0
    try:
        told = TASKS[options["task"]](options)
    except CompilerError as error:
        told = {"what": error.what, "where": error.where, "fix": error.fix}
        code = EXIT_BAD_FILE
    except MemoryError:
        told = {
            "what": "the file cannot be read within the limits",
            "where": f"memory: {limit >> 20} MiB",
            "fix": "use the qsearch command on it, where no limit applies",
        }
        code = EXIT_BAD_FILE
    except BaseException:
        return 1
    with open(options["answer"], "w", encoding="utf-8") as out:
        json.dump(told, out, allow_nan=False)
    return code


# Layers -----------------------------------------------------------------------------------------


def layers_of(
    module: Path, qconfig: dict[str, Any], inputs: Path, scales: Path | None, channels: Path | None
) -> dict[str, Any]:
    """Layers in visiting order with their ratios in dB, and that of the outputs.

    Args:
        module: the float module as workers get it.
        qconfig: fields of the configuration.
        inputs: as ``sample_inputs`` made them.
        scales: ranges of the configuration; None for global_scale.
        channels: statistics of single channels, where the configuration needs them.
    Raises:
        CompilerError: the files do not belong together.
    """
    network = ModuleBlob(module.read_bytes()).unpack()
    names = [param.name_hint for param in network["main"].params]
    runs = runs_of(arrays_of(inputs), names)
    found, outputs = layer_sqnr(
        network,
        QConfig.from_dict(qconfig),
        None if scales is None else arrays_of(scales)["scales"],
        runs,
        channels=None if channels is None else ChannelStats.from_arrays(arrays_of(channels)),
    )
    return {
        "samples": len(runs),
        "layers": [layer.to_dict() for layer in found],
        "output_db": outputs.output_db,
        "agreement": outputs.agreement,
    }


if __name__ == "__main__":
    serve()
