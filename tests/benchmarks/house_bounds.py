"""How large the packages may be, code lines by what they were added for, and the words they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LINES_BEFORE: Final = {"compiler": 44818, "workers": 2486, "qsearch": 13665}
"""Code lines at dd50b60, the commit before the house was made simple (``--lines`` counts them)."""
FEWER_LINES: Final = 2000
LINES_ADDED: Final[Mapping[str, int]] = {
    "proof of whole modules: records, signatures, bounds of work, replay": 2774,
    "engine: step tables and kernels, platform wheels": 2600,
    "engine: 64 bits, every rounding, orders of elements, operands of 16 bits": 622,
    "engine: kernels for narrow weights, rows together, waiting threads": 56,
    "engine: transposed convolutions by phases, vector lookups, shifts to even, pools": 340,
    "engine: factors as float32, loads and stores that scale, vectors of eight": 72,
    "engine: depthwise kernels that fill registers": 64,
    "engine: depthwise windows of int16, clips by channel": 49,
    "tables of functions that read 12 bits, narrowed in QDQ graphs": 71,
    "choose: sequential rounding from two samples on, smoothing over few, limits in one place": 16,
    "choose: wide inputs and predicted errors in files of their own": 21,
    "engine: tables of functions as lines": 63,
    "search: bits that layers read as a choice": 62,
    "QDQ graphs: inner inputs of 8 bits, averages, borders, zero points": 107,
    "C target: channels last, layouts, folded requantization, dot products": 1101,
    "ONNX: QDQ graphs, names and dtypes, default session options": 1267,
    "guidance: what a search is told before it starts, choose, best -o, typed keywords": 1096,
    "words: meanings of figures, tables that fit, next lines, named artefacts": 239,
    "profile": 478,
    "graphs: passes read only the nodes that they need, once": 194,
    "calibration: kernels in C, checks of the written file": 259,
    "calibration: rescaled networks counted in the passes of the plain one": 177,
    "calibration: residual sums of 16 bits counted in the same passes": 50,
    "calibration: divergences and errors of weight grids in C, products added in place": 98,
    "quantize: steps of float products compared in C": 57,
    "ONNX: residual sums of 16 bits narrowed in QDQ graphs": 190,
    "launch: bounds of rounding and examination, latency by engine and in C": 95,
    "launch: the winner's rounding travels, thresholds and ranges remembered": 80,
    "trials: who scored, checked by the reference": 110,
    "dashboard: table, plots in the browser": -192,
    "ray: a head that ended": 8,
    "own code in every worker (--import)": 430,
    "ray: searches share a cluster": 110,
    "quantize: weights rounded to what the quantized layers in front give": 494,
    "quantize: all codes of weights of few bits, fitted to more images": 40,
    "search: predicted errors as a prior, warm start, policies of studies": 308,
    "search: top-1 in steps of luck": 74,
    "search: generations of NSGA-II in constant time": 30,
    "driver: statements built once, configurations known until they run": 51,
    "pruner: few rivals stand for all earlier trials": 18,
    "search: values of fields that cost as much as several trials": 62,
    "quantize: smoothing passes clips with a limit": 56,
    "quantize: one range for values that a concatenation or pool hands on": 93,
    "calibration: grids that hold the few values of images": 4,
    "quantize: more bits for what small last layers read, of many weights too": 121,
    "quantize: fitted ranges that leave room for values that were not seen": 59,
    "quantize: more bits for what the first depthwise layers read": 46,
    "ONNX: what depthwise layers read in 16 bits narrowed in QDQ graphs": 29,
    "ONNX: ranges of channels of what QDQ graphs narrow, kept in modules": 154,
    "calibration: ranges that end where an activation function is constant": 41,
    "quantize: sums of 8-bit values with 8 more bits": 15,
    "quantize: channels that biases move to the middle of their ranges": 224,
    "quantize: ranges in front of concatenations fitted to what reads them": 30,
    "quantize: factors of channels through concatenations": 150,
    "server: queue, tokens, uploads, client": 2180,
    "quantize: ranges fitted to what reads them, residual sums of 16 bits": 191,
    "dashboard: pages prepared by the search, a study at rest": 85,
    "pool: a queue of constant time a step": 52,
    "house: test helpers in tests/, one way to open data, reductions as values": -244,
    "server: waiting studies rise, uploads forgotten": 25,
    "server: rights and limits that stay, trials that count once, errors before a download": 107,
    "cli: inputs are never replaced, commands by what they do, data on another scale": 74,
    "importer: operators that ONNX defines by others, sparse weights": 72,
    "cli: errors of imported files, sequences before batches, one-hot labels": 26,
    "importer: RNN, GRU, LSTM; shared weights counted once": 254,
    "quantize: quotients, numbers of truth values, picks at any places": 52,
    "importer: advice for operators without a static form, LpPool, scikit-learn": 42,
    "ONNX: positions, sums and shifts at the ends of 64 bits": 29,
    "ONNX: every operation in float16 rounds, products beyond double": 35,
    "ONNX: which operator keeps samples off the first axis": 4,
    "lir: an index may choose between two places": 15,
    "search: bits of layers within a limit of bytes in every trial": 44,
    "search: what early stopping saved": 10,
    "search: repeats told by predicted ranges, guesses that leave room": 27,
    "dashboard: bundled scripts, the head on pages of modules, trials done in the queue": 100,
    "workers: metrics of several runs at a time": 20,
    "engine: a clip in front of one factor is one behind it": 15,
    "engine: tables over more than 8 bits": 66,
    "ir: orders of functions and types of rebuilt calls are kept, passes without work": 49,
    "ir: operators of functions are kept, the end of InferType reads few nodes": 24,
    "server: which file, name, shape or setting a submission is refused for": 35,
    "server: the user's name of a model, a quota that changes without a new token": 42,
    "driver: one statement tells what others changed, connections counted": 67,
    "server: users and their use listed, values told that the API takes": 114,
    "server: what was used more than a day ago does not count again": 38,
    "server: answers that are cut off, uploads at the same time and once more": 22,
    "report: layers of the winner, why a luckier trial did not win": 28,
}
"""Features since, and the code lines each added to the packages: the sums of their commits. A new
feature enters its own; what is then left of the growth has to be at least ``FEWER_LINES`` below
zero."""
LONGEST_FILE: Final = 450
SMALL_MODULE: Final = 60

DIALECT: Final[Mapping[str, str]] = {
    "asking": "sampler",
    "bury": "requeue",
    "early_stop": "pruner",
    "evaluating": "evaluation",
    "feeding": "batching",
    "gathering": "reordering",
    "hand_over": "finish",
    "handover": "finish",
    "incumbent": "best trials",
    "incumbents": "best trials",
    "judge": "evaluator",
    "judges": "evaluators",
    "judging": "evaluator",
    "kept_inputs": "sample_inputs",
    "large_values": "object store",
    "launching": "launch",
    "ledger": "trials of the study",
    "local_pool": "inline pool",
    "managing": "studies",
    "own_code": "user code",
    "own_passes": "user passes",
    "paired_stop": "pruner",
    "proposer": "sampler",
    "queueing": "queue",
    "recent": "LRU cache",
    "serving": "server",
    "spool": "object data",
    "warming": "warm-up",
    "watching": "studies",
    "wish": "command",
    "wishes": "commands",
}
"""Word of the former dialect -> word of the field."""
ALIASES: Final[Mapping[str, frozenset[str]]] = {
    "qsearch/cli/options.py": frozenset({"judge"}),
    "qsearch/config.py": frozenset({"judge"}),
    "qsearch/store/records.py": frozenset({"judge"}),
}
"""Files that may hold a word of the dialect: where a hidden alias or a stored key is read."""

NAMED_ROOMS: Final = frozenset(
    {
        "qsearch.__main__",
        "qsearch.dashboard.routes.events",
        "qsearch.store.migrations.env",
        "workers.metrics.agreement",
    }
)
"""Small modules with one reader that keep their file: Python, alembic, a resource or a metric names
them."""
