"""Types of the parameters that functions of the Python API and commands share.

The command line makes options of them (``cli/command.py``): a type says the flag, the heading in
``--help``, what stands for the value, and the help where the ``Args:`` of a function has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

if TYPE_CHECKING:
    from compiler.qtypes.qconfig import QConfig

INPUT: Final = "Model and data"
OPTIONS: Final = "Options"
STUDY: Final = "Study"
OUTPUT: Final = "Output"
SERVER: Final = "Server"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Form of a parameter on the command line; plain types have one of their own.

    Attributes:
        metavar: what stands for the value, legal words with ``|`` between them; "" is a switch.
        panel: heading in ``--help``.
        flags: spellings, where they are not the name.
        help: where the docstring of the function has none.
        positional: a word without a flag.
        several: may be given several times.
        least: lowest legal number.
        everyday: shown by ``--help``; others by ``--help-all`` only.
    """

    metavar: str = ""
    panel: str = OPTIONS
    flags: tuple[str, ...] = ()
    help: str = ""
    positional: bool = False
    several: bool = False
    least: int | None = None
    everyday: bool = True


PathLike = str | os.PathLike[str]

Model = Annotated[
    Any, Parameter("M", INPUT, help="an .onnx file, or `digits`, which ships with the package")
]
Calib = Annotated[Any, Parameter("C", INPUT, help="calibration data (synthetic)")]
Eval = Annotated[Any, Parameter("E", INPUT, help="evaluation data (the calibration data)")]
Preprocess = Annotated[
    PathLike | Mapping[str, Any] | None,
    Parameter("FILE", INPUT, help="how an image becomes the input"),
]
Seed = Annotated[int, Parameter("S", INPUT, help="seed of synthetic data", everyday=False)]
Dims = Annotated[
    Mapping[str, int] | Sequence[str],
    Parameter(
        "NAME=N",
        INPUT,
        ("--dim",),
        "size of a named dimension, or of an axis of an input (x:2=128); repeatable",
        several=True,
    ),
]
Until = Annotated[
    Sequence[str],
    Parameter(
        "NODE",
        INPUT,
        help="node or tensor that the quantized part ends with; the rest is float; repeatable",
        several=True,
        everyday=False,
    ),
]
From = Annotated[
    Sequence[str],
    Parameter(
        "NODE",
        INPUT,
        help="node that the quantized part begins with, or tensor that it takes; repeatable",
        several=True,
        everyday=False,
    ),
]
SetInput = Annotated[
    Sequence[str] | Mapping[str, Any],
    Parameter(
        "NAME=VALUE",
        INPUT,
        help="an input that is always this value (sr=16000); repeatable",
        several=True,
        everyday=False,
    ),
]
Qconfig = Annotated["QConfig | Mapping[str, Any] | str | None", Parameter("K=V,…", several=True)]
Hardware = Annotated[
    PathLike | None,
    Parameter("FILE|opu|opu_q|npu", help="group operators for this accelerator"),
]
Module = Annotated[
    PathLike,
    Parameter("M.qmod", help="what `launch` or `compile` wrote, or a run folder", positional=True),
]
File = Annotated[PathLike, Parameter("FILE", positional=True)]
Executor = Annotated[str, Parameter("auto|reference|engine|integer|c", INPUT, everyday=False)]
Number = Annotated[int, Parameter("N", least=0)]
Count = Annotated[int, Parameter("N", least=1)]

Folder = Annotated[
    PathLike | None, Parameter("DIR", help="run folder (the only one in runs)", positional=True)
]
Storage = Annotated[str | None, Parameter("URL", STUDY, help="storage, instead of a run folder's")]
Study = Annotated[
    str | None, Parameter("NAME", STUDY, help="name of the study, if there are several")
]
Server = Annotated[
    str | None,
    Parameter(
        "URL",
        STUDY,
        help="ask this `qsearch serve`, with the token in QSEARCH_TOKEN; DIR is the study's name",
    ),
]

Studies = Annotated[
    Sequence[PathLike],
    Parameter("STUDY", help="run folders, or names with --storage", positional=True, several=True),
]
RowsFormat = Annotated[
    Literal["table", "json", "csv"],
    Parameter("table|json|csv", OUTPUT, ("-f", "--format"), "format of the rows"),
]
Words = Annotated[Sequence[str], Parameter("NAME", several=True)]
Pools = Annotated[Sequence[Literal["process", "ray"]], Parameter("process|ray", several=True)]
Seldom = Annotated[bool, Parameter(everyday=False)]
ExportFormat = Annotated[str, Parameter("c|onnx|qdq|tflite|float|commands", OUTPUT)]
Yes = Annotated[bool, Parameter(flags=("-y", "--yes"))]
Name = Annotated[str, Parameter("NAME", positional=True)]
Shell = Annotated[str, Parameter("bash|zsh|fish", positional=True)]
ServerUrl = Annotated[
    str,
    Parameter(
        "URL", SERVER, ("--server",), "URL of `qsearch serve`; the token is in QSEARCH_TOKEN"
    ),
]
Configuration = Annotated[PathLike | None, Parameter("FILE", flags=("-c", "--config"))]

Out = Annotated[PathLike | None, Parameter("FILE", OUTPUT, ("-o", "--out", "--output"))]
Json = Annotated[bool, Parameter("", OUTPUT, ("--json",), "print one JSON object")]
