"""nn.relu: out = max(x, 0) in the dtype of x."""

from __future__ import annotations

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, register_op
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import (
    annotate_pass_through,
    partition_pass_through,
    realize_relu,
)
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.tensor.number_rel import number_rel

relu = register_op("nn.relu", rel=number_rel("nn.relu"), pattern=OpPattern.ELEMWISE)


# A NaN stays a NaN.
FNumpyCompute.register(relu)(of_arrays(lambda x: np.maximum(x, x.dtype.type(0))))
FQPartitionRewrite.register(relu)(partition_pass_through)
FQAnnotateRewrite.register(relu)(annotate_pass_through)
FQRealizeRewrite.register(relu)(realize_relu)
FQDomScale.register(relu)(same_scale)


@FBody.register(relu)
def relu_body(step: Step, words: Words) -> Value:
    """The larger of x and 0."""
    return words.maximum(step.args[0], 0)
