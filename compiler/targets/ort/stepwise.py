"""SteppedOnnx: the nodes of an exact integer ONNX, with every value cut in as an input.

    t3 = ConvInteger(t1, w)         t3 = ConvInteger(t1', w)        t1' and t3' are given,
    t4 = Add(t3, b)                 t4 = Add(t3', b)                t3 and t4 are read

Nodes, their attributes and constants are those of the exported file; a session has the options
that a user's has. So onnxruntime may fuse the nodes of one operator as it would there, but none
across values, of which the whole file, run as it is, tells. Sessions hold as many operators as
``MOST_BYTES`` of values allow: one for a small network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import helper

from compiler.export.to_onnx.emitter import ONNX
from compiler.export.to_onnx.graph_writer import onnx_type, with_inner
from compiler.export.to_onnx.integer.model import Written, integer_model
from compiler.ir.dataflow import Value, dataflow
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float
from compiler.ops.number_format import Array
from compiler.targets.ort.session import OrtExecutor

MOST_BYTES: Final = 1 << 26
"""Upper limit of the bytes of the values of one session, in all dtypes as int64."""


class _Graph:
    """The nodes of one graph; implements ``proof.steps.Form``.

    Args:
        written: the graph.
        model: that it stands in.
    """

    name = "integer ONNX"

    def __init__(self, written: Written, model: onnx.ModelProto) -> None:
        self.flow = written.flow
        tensors = written.tensors
        self.starts: Sequence[Value] = [v for v in self.flow.inputs if v.data is None]
        self.operators = len(self.flow.steps)
        held = (*model.graph.initializer, *written.graph.initializer)
        self._constants = {tensor.name: tensor for tensor in held}
        self._nodes = {name: node for node in written.graph.node for name in node.output}
        self._opset = model.opset_import
        self._taken = {tensors[value].name: value for value in self.starts if value in tensors}
        self._values: dict[str, Value] = {}
        for value, held in tensors.items():
            # Of several values that one tensor holds, the first.
            if held.name in self._nodes:
                self._values.setdefault(held.name, value)
        self._tensors = {value: tensors[value] for value in self._values.values()}
        stages: list[list[Value]] = []
        bytes_held = MOST_BYTES
        for value in self._tensors:
            size = 8 * value.type.num_elements
            if bytes_held + size > MOST_BYTES:
                stages.append([])
                bytes_held = 0
            bytes_held += size
            stages[-1].append(value)
        self.stages: Sequence[Sequence[Value]] = stages
        self._sessions: dict[int, OrtExecutor] = {}

    def source(self, value: Value) -> Value:
        """The value itself."""
        return value

    def may_give(self, value: Value) -> bool:
        """Every integer that a node computes; what is empty cannot be told from another."""
        whole = not is_float(value.type.dtype) and all(value.type.shape)
        return whole and value in self._tensors

    def bounds(self) -> Mapping[Value, tuple[int, int]]:
        """None: operators wrap as those of the reference."""
        return {}

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Take the inputs of the flow."""
        arrays = dict(zip(self.starts, inputs, strict=True))
        self._inputs = {f"{name}'": arrays[value] for name, value in self._taken.items()}

    def run_stage(self, stage: int, operands: Mapping[Value, Array]) -> list[Array]:
        """The values of one stage."""
        session = self._sessions.get(stage)
        if session is None:
            session = self._sessions[stage] = self._session(stage)
        given = {
            f"{self._tensors[v].name}'": a.astype(self._tensors[v].dtype)
            for v, a in operands.items()
            if v in self._tensors
        }
        given |= self._inputs
        return session.run({name: given[name] for name in session.input_names})

    def _session(self, stage: int) -> OrtExecutor:
        values = self.stages[stage]
        nodes: dict[str, onnx.NodeProto] = {}
        inputs: dict[str, Value] = {}
        constants: set[str] = set()
        waiting = [self._tensors[value].name for value in values]
        while waiting:
            name = waiting.pop()
            if self._nodes[name].name in nodes:
                continue
            node = onnx.NodeProto()
            node.CopyFrom(self._nodes[name])
            nodes[node.name] = node
            own = {info.name for a in node.attribute for info in a.g.input}
            own.update(tensor.name for a in node.attribute for tensor in a.g.initializer)
            own.update(made for inner in with_inner(node) for made in inner.output)
            for reader in with_inner(node):
                for place, read in enumerate(reader.input):
                    value = self._taken.get(read) or self._values.get(read)
                    if read in own:
                        continue
                    if read in self._constants:
                        constants.add(read)
                    elif value is not None and (value.producer is None or self.may_give(value)):
                        reader.input[place] = f"{read}'"
                        inputs[f"{read}'"] = value
                    elif read:
                        waiting.append(read)
        order = [n.name for n in self._nodes.values()]
        graph = helper.make_graph(
            [nodes[name] for name in dict.fromkeys(order) if name in nodes],
            "stage",
            [self._info(name, value) for name, value in inputs.items()],
            [self._info(self._tensors[value].name, value) for value in values],
            [self._constants[name] for name in sorted(constants)],
        )
        model = helper.make_model(graph, opset_imports=self._opset)
        model.ir_version = 8
        return OrtExecutor(model, arena=False)  # many wait for the next round

    def _info(self, name: str, value: Value) -> onnx.ValueInfoProto:
        held = self._tensors.get(value)
        dtype = onnx_type(value.type.dtype if held is None else held.dtype)
        return helper.make_tensor_value_info(name, dtype, value.type.concrete_shape)


class SteppedOnnx(_Graph):
    """The nodes of a module.

    Args:
        mod, function: as for ``to_integer_onnx``.
    Attributes:
        bodies: of the loops.
    Raises:
        OnnxExportError: the module has no exact integer form.
        CodegenError: onnxruntime refuses it.
    """

    def __init__(self, mod: IRModule, function: str = "main") -> None:
        model, written, inner = integer_model(dataflow(mod, function, ONNX), function)
        super().__init__(written, model)
        self.bodies = [_Graph(body, model) for body in inner]
