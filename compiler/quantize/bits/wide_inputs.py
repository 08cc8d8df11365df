"""Choose the layers and tables that read more than 8 bits: where that gains and costs little."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compiler.ir.expr import Call, Constant, Expr, Function, Var, is_op_call
from compiler.ir.loops import END, STEP, lengths_of
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Sequential
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import is_given, quantize_kind
from compiler.ops.annotation.wide_point import residual_stream
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.layer_choices import OTHERS, POINT_BITS, SCORES, SUMS, TABLES, WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import BORDER_OPS
from compiler.quantize.bits.cost import module_cost
from compiler.quantize.bits.point_bits import Readers, moves, point_readers
from compiler.quantize.calibration.input_sample import batch_size
from compiler.quantize.candidate import RECOGNIZE, recommended_mark
from compiler.quantize.layers import has_weight, named_layers
from compiler.quantize.preparation.even_inputs import reads_columns

_SMALL: Final = 64
"""The last layers read at most this part of all quantized values."""
_CHEAP: Final = 256
"""They multiply at most this part of all multiplications. Measured: 13 bits in front of the
classifier of EfficientNet-Lite0, 0.3 % of them, gain 0.25 dB; the engine takes no longer."""
_FIRST: Final = 64
"""The first grouped layers multiply at most this part of all multiplications. Measured: 16 bits for
the first depthwise layer of two MobileNets gain 1.1 and 1.5 dB, of EfficientNet-Lite0 0.65 dB, and
the engine takes 0.3 to 3 % longer. Those of the next layers gain 0.2 dB and cost 8 %, those of a
network with squeeze and excite, whose first one is 6 % of the multiplications, 0.1 dB."""

_BEHIND: Final = 4
"""Each layer that reads what loops give multiplies at most this part of what the loops do."""

TABLE_BITS: Final = 12
"""Bits of the indices of tables of functions, where they are cheap. Measured over 128 samples:
LeakyReLU gains 6.6 dB, hard-swish 0.8, GELU 0.3; the engine takes -4 to 5 % longer (four small
networks)."""
_A_CHEAP_TABLE: Final = 64
"""Multiplications for each value that a table reads, from which the engine takes 1 to 6 % longer
for 12 bits (four networks, AVX512-VBMI; 2 to 12 % on AVX2)."""
_A_TABLE: Final = 24
"""The same for searches, which see what it gains: with 30 it took 19 % longer (25 % on AVX2). Fewer
were not measured."""
_A_SCORE: Final = 320
"""Multiplications for each value that a softmax reads, from which 12 bits cost little: a small BERT
gains 3 dB, a block of Llama 2. With 257 the engine took 0.48 of float instead of 0.40."""

OTHER_BITS: Final = POINT_BITS[OTHERS][-1]
"""Bits of a value that no layer reads and no convolution gives. Measured over 21 small networks: 9
gain 0.7 to 15 dB, the others nothing; the engine takes as long."""

_TINY: Final = 1 << 19
"""Multiplications of one sample, up to which a run takes longer for its steps than for these. In a
network of 0.35 million, 16 bits in all layers gain 5 dB. The engine takes 10 % longer for a batch
of 1, and up to 60 % for a batch of 16 (VNNI; 4 % on AVX2)."""

_EXPONENTIAL_BYTES: Final = 3
_TABLE_OF_WEIGHTS: Final = 2
"""Largest table of a softmax in units of all weights. In a network of 1,070 weights and 3 classes 9
bits lose 0.7 dB of 35.7, and the table takes 1.5 kB, not 10."""

_Layers = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class WideInputs:
    """Layers that read more bits than the others, and why.

    Attributes:
        layers: for ``QConfig.layers``.
        why: one sentence for each kind of layers.
        searched: bits of residual sums and tables that a search tries, which sees what they gain.
        tiny: bits of further layers, where the network is so small that they take little time.
        fields: of a QConfig whose values all have 16 bits, where no layer multiplies anything; 15
            where products of two of them have to fit int32.
    """

    layers: _Layers = field(default_factory=dict)
    why: tuple[str, ...] = ()
    searched: Mapping[str, int] = field(default_factory=dict)
    tiny: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, int | str] = field(default_factory=dict)


def wide_inputs(module: IRModule) -> WideInputs:
    """Up to 16 bits for what a few layers read, where that gains and costs little; O(edges).

    Args:
        module: result of ``prerequisite_optimize``; without quantize points of its own.
    Returns:
        The layers, and what a search may try.
    Raises:
        QuantizeError: layers of the module multiply integers already.
    """
    marked = _Marked.of(module)
    last = marked.last_layers()
    first, share = marked.first_layers(set(last))
    why = [f"few values in front of {', '.join(last)} decide: more bits cost nothing there"]
    why = why if last else []
    if first:
        why.append(
            f"sums of {', '.join(first)} are of few products, so rounding errors of their data go "
            f"to all layers behind them: more bits cost {share:.1%} of the multiplications"
        )
    if columns := marked.of_columns({*last, *first}):
        why.append(f"columns of a table meet in {', '.join(columns)}: more bits cost little there")
    loops = marked.of_loops({*last, *first, *columns})
    if loops:
        why.append(
            "states of loops add up what the layers in and in front of loops round: "
            "more bits cost little there"
        )
    read: Counter[Readers] = Counter()
    for point, readers in marked.points.items():
        read[readers] += marked.values[point]
    values = read[TABLES,]
    scores = read[SCORES,]
    work = sum(marked.work.values())
    found = last | first | columns | loops
    searched: dict[str, int] = {}
    looped, others = _sums(Sequential(RECOGNIZE, name="recognize")(module)["main"])
    if looped > others:
        found |= {SUMS: {"nbit_input": WIDE_BITS}}
        why.append(f"sums in loops are rounded in every step: {WIDE_BITS} bits cost nothing there")
    elif work and (looped or others):
        searched[SUMS] = WIDE_BITS
    if values and (work >= _A_CHEAP_TABLE * values or not work or looped > others):
        found |= {TABLES: {"nbit_input": TABLE_BITS}}
        each = f"layers multiply {work / values:.0f} times for each value of them"
        if work < _A_CHEAP_TABLE * values:
            if work:
                each = "states of loops add up what they round"
            else:
                each = "nothing else takes time"
        why.append(f"tables of functions read {TABLE_BITS} bits nearly as fast as 8: {each}")
    elif values and work >= _A_TABLE * values:
        searched[TABLES] = TABLE_BITS
    if scores and work >= _A_SCORE * scores:
        nbit = marked.score_bits()
        found |= {SCORES: {"nbit_input": nbit}}
        why.append(f"softmax reads few values: {nbit} bits cost nothing there")
    if work and read[OTHERS,]:
        found |= {OTHERS: {"nbit_input": OTHER_BITS}}
        why.append(f"no layer multiplies some values: {OTHER_BITS} bits cost little there")
    tiny = work <= _TINY * batch_size(module)
    further = marked.further_layers(found) if tiny else {}
    if work:
        return WideInputs(found, tuple(why), searched, further)
    products = [node for node in marked.nodes if is_op_call(node, "multiply")]
    fewer = any(all(map(_is_computed, call.args)) for call in products)
    fields: dict[str, int | str] = {"dtype_input": "int16", "nbit_input": WIDE_BITS - fewer}
    return WideInputs(found, tuple(why), searched, further, fields)


def left_in_float(module: IRModule) -> _Layers:
    """More bits for what layers and tables read, where a model that brings quantization points
    along has none: nearly the float that it computes there.

    Args:
        module: result of ``prerequisite_optimize``.
    """
    marked = _Marked.of(module)
    found = _Layers()
    calls = {name: call for call, name in marked.layers.items()}
    for point, readers in marked.points.items():
        for name in () if is_given(point) else readers:
            if name in calls:
                nbit = marked.bits_of(calls[name])
            else:
                nbit = POINT_BITS.get(name, (0,))[-1]
            if nbit:
                found[name] = {"nbit_input": nbit}
    return found


def _is_computed(factor: Expr) -> bool:
    return not isinstance(factor, Constant) and quantize_kind(factor) != QAnnotateKind.WEIGHT


def _sums(main: Function) -> tuple[int, int]:
    """Count the sums of two computed values of a run, in loops and outside of them.

    Measured over 15 small networks of LSTM, GRU, RNN: 16 bits in loops gain 0.2 to 5.1 dB, 1.6 in
    the median, and the engine takes as long; in a convolutional LSTM 1.4 times (0.09 of float).
    A loop of one step counts too, since streams call such cells: a denoising GRU ends at 40.0 dB
    instead of 32.3 after 1,000 calls, an LSTM at 36.2 instead of 34.4.
    """
    joined = residual_stream(main, sums=True) - residual_stream(main)
    lengths = lengths_of(main)
    looped = others = 0
    for node in joined:
        if is_op_call(node, "add"):
            count = math.prod(lengths[node]) * node.tensor_type.num_elements
            looped += count if lengths[node] else 0
            others += 0 if lengths[node] else count
    return looped, others


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """A marked module.

    Attributes:
        nodes: operands before users.
        layers: calls by their names.
        points: who reads each quantize point.
        values: how many each of them quantizes.
        behind: what layers compute, and all that is computed from it.
        work: multiplications of each layer.
        loops: the steps of each loop that a node stands in.
    """

    nodes: Sequence[Expr]
    layers: Mapping[Call, str]
    points: Mapping[Expr, Readers]
    values: Mapping[Expr, int]
    behind: frozenset[Expr]
    work: Mapping[str, int]
    loops: Mapping[Expr, tuple[int, ...]]

    @staticmethod
    def of(module: IRModule) -> _Marked:
        qconfig = QConfig.recommended()
        annotated = module.view(recommended_mark)[0]
        main = annotated["main"]
        nodes = nodes_of(main)
        layers = named_layers(main)
        behind: set[Expr] = set()
        for node in nodes:
            if node in layers or not behind.isdisjoint(node.operands()):
                behind.add(node)
        work = {one.name: one.multiplications for one in module_cost(annotated, qconfig).layers}
        points = point_readers(main)
        values = {point: point.tensor_type.num_elements for point in points}
        loops = lengths_of(main)
        return _Marked(nodes, layers, points, values, frozenset(behind), work, loops)

    def score_bits(self) -> int:
        """The most bits, up to TABLE_BITS, whose table of exponentials is not much larger than the
        weights."""
        weights = sum(math.prod(call.args[1].tensor_type.concrete_shape) for call in self.layers)
        entries = _TABLE_OF_WEIGHTS * weights // _EXPONENTIAL_BYTES
        fewest, *_ = POINT_BITS[SCORES]
        return min(max(entries.bit_length() - 1, fewest), TABLE_BITS)

    def bits_of(self, layer: Expr) -> int:
        """The most bits of its data, up to 16, for which no sum leaves the accumulator; 0 where
        these are no more than usual, or the layer has no weight."""
        if not isinstance(layer, Call) or not has_weight(layer):
            return 0
        qconfig = QConfig.recommended()
        terms = FQProductShape.require(layer.op)(layer).terms
        nbit = 32 - qconfig.nbit_weight - (terms - 1).bit_length()
        if nbit > qconfig.nbit_input:
            return min(WIDE_BITS, nbit)
        return 0

    def last_layers(self) -> _Layers:
        """Layers that only other last layers follow, where they read few values.

        Behind a pool over the image there are a few values that decide. Their rounding goes into
        the results as it is, and calibration sees too few of them to know how large they become.
        16 bits have room for both and cost next to nothing there.
        """
        most = sum(self.values.values()) / _SMALL
        left = sum(self.work.values()) / _CHEAP
        found: _Layers = {}
        inner: set[Expr] = set()
        for node in reversed(self.nodes):
            if node in self.layers and node not in inner and isinstance(node, Call):
                name = self.layers[node]
                nbit = self.bits_of(node)
                few = node.args[0].tensor_type.num_elements <= most
                if few and nbit and self.work[name] <= left:
                    left -= self.work[name]
                    found[name] = {"nbit_input": nbit}
                    continue
            if node in self.layers or node in inner:
                inner.update(node.operands())
        for point, names in self.points.items():
            if not found.keys() >= set(names) or point.operands()[1] not in self.behind:
                for name in names:
                    found.pop(name, None)
        return found

    def first_layers(self, others: Collection[str]) -> tuple[_Layers, float]:
        """The first layers of few products a sum behind other layers, and their share of the work.

        A sum of many products averages the rounding errors of its data out, a depthwise layer does
        not; and what the first layers lose goes through the whole network. They are taken in
        their order as long as they are a small part of the multiplications.

        Args:
            others: layers that are not looked at.
        """
        whole = sum(self.work.values())
        left = whole / _FIRST
        alone = self._read_alone()
        found: _Layers = {}
        for node, name in self.layers.items():
            grouped = getattr(node.attrs, "groups", 1) > 1
            if not grouped or name in others:
                continue
            left -= self.work[name]
            if left < 0:
                break
            if name in alone and self.bits_of(node):
                found[name] = {"nbit_input": self.bits_of(node)}
        return found, sum(self.work[name] for name in found) / max(whole, 1)

    def of_columns(self, others: Collection[str]) -> _Layers:
        """Layers that read inputs behind a factor for each column, but for ``others``.

        Few sums of few products, and each column has a range of its own.
        """
        params = {node for node in self.nodes if isinstance(node, Var)}
        return self._more_bits(others, lambda node: reads_columns(node, params))

    def _more_bits(self, others: Collection[str], wanted: Callable[[Call], bool]) -> _Layers:
        """The layers with this property that take more bits, but for ``others``."""
        return {
            name: {"nbit_input": self.bits_of(node)}
            for node, name in self.layers.items()
            if name not in others and self.bits_of(node) and wanted(node)
        }

    def of_loops(self, others: Collection[str]) -> _Layers:
        """Dense layers in loops, those whose results the steps of a loop read, and small ones that
        read what loops give, but for ``others``.

        A state adds up what each step rounds, and one outlier makes all steps coarse. Measured over
        four trained networks of GRU, RNN and LSTM, both kinds of layers together gain 7 to 20 dB,
        each alone 1 to 9; the engine takes -5 to 10 % longer, with 384 units 20 %. The third kind
        gains 2 and 9 dB in two networks: a state of 16 bits is not rounded once more.
        """
        given = set[Expr]()
        for node in self.nodes:
            handed = node in self.points or is_op_call(node, END, *BORDER_OPS) or moves(node)
            if self.loops[node] or (handed and not given.isdisjoint(node.operands())):
                given.add(node)
        looped = sum(self.work[name] for node, name in self.layers.items() if self.loops[node])
        in_front: set[Expr] = set()
        for node in reversed(self.nodes):
            if is_op_call(node, STEP) or (node in in_front and node not in self.layers):
                in_front.update(node.operands())

        def in_loops(node: Call) -> bool:
            small = node.args[0] in given and self.work[self.layers[node]] <= looped / _BEHIND
            return is_op_call(node, "nn.dense") and (
                bool(self.loops[node]) or node in in_front or small
            )

        return self._more_bits(others, in_loops)

    def further_layers(self, others: Collection[str]) -> dict[str, int]:
        """All layers that read computed values, but for ``others``."""
        behind = {n for point, names in self.points.items() if point in self.behind for n in names}
        found = self._more_bits(others, lambda node: self.layers[node] in behind)
        return {name: choice["nbit_input"] for name, choice in found.items()}

    def _read_alone(self) -> set[str]:
        """Layers that read a computed value which, but for sums, nothing else reads."""
        users: dict[Expr, list[Expr]] = {}
        for node in reversed(self.nodes):
            handed = is_op_call(node, *BORDER_OPS)
            read = users.get(node, []) if handed else [node]
            for operand in node.operands():
                users.setdefault(operand, []).extend(read)
        alone: set[str] = set()
        others: set[str] = set()
        for point, names in self.points.items():
            own = set(names) - {"", *POINT_BITS}
            sums = all(u in self.layers or is_op_call(u, "add") for u in users.get(point, []))
            fits = len(own) == 1 and sums and point in self.behind and not own & alone
            (alone if fits else others).update(own)
        return alone - others
