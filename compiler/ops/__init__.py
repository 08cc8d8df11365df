"""Every operator: importing this package registers them and their rules.

One operator, one file; README.md says how to add one, `python -m compiler.ops` what is there.
"""

# ruff: noqa: F401  (imported so that they register)

import compiler.ops.annotation.cast_hint
import compiler.ops.annotation.on_device
import compiler.ops.annotation.simulated_quantize
import compiler.ops.annotation.stop_fusion
import compiler.ops.nn.avg_pool2d
import compiler.ops.nn.batch_flatten
import compiler.ops.nn.batch_matmul
import compiler.ops.nn.batch_norm
import compiler.ops.nn.bias_add
import compiler.ops.nn.conv2d
import compiler.ops.nn.convolve
import compiler.ops.nn.dense
import compiler.ops.nn.dropout
import compiler.ops.nn.exact_matmul
import compiler.ops.nn.global_avg_pool2d
import compiler.ops.nn.inference_arithmetic
import compiler.ops.nn.layer_norm
import compiler.ops.nn.matmul
import compiler.ops.nn.max_pool2d
import compiler.ops.nn.normalize
import compiler.ops.nn.pad
import compiler.ops.nn.pool
import compiler.ops.nn.product_dtype
import compiler.ops.nn.relu
import compiler.ops.nn.softmax
import compiler.ops.nn.weight_scaling
import compiler.ops.nn.window
import compiler.ops.reduce.axes
import compiler.ops.reduce.mean
import compiler.ops.reduce.sum
import compiler.ops.reduce.variance
import compiler.ops.tensor.add
import compiler.ops.tensor.bitwise
import compiler.ops.tensor.broadcast
import compiler.ops.tensor.cast
import compiler.ops.tensor.clip
import compiler.ops.tensor.compare
import compiler.ops.tensor.divide
import compiler.ops.tensor.error_function
import compiler.ops.tensor.fill
import compiler.ops.tensor.fixed_point_multiply
import compiler.ops.tensor.integer_division
import compiler.ops.tensor.logical
import compiler.ops.tensor.maximum
import compiler.ops.tensor.minimum
import compiler.ops.tensor.multiply
import compiler.ops.tensor.number_rel
import compiler.ops.tensor.power
import compiler.ops.tensor.scale_passing
import compiler.ops.tensor.shape_of
import compiler.ops.tensor.subtract
import compiler.ops.tensor.unary
import compiler.ops.tensor.value_from_type
import compiler.ops.tensor.where
import compiler.ops.transform.concatenate
import compiler.ops.transform.expand_dims
import compiler.ops.transform.reshape
import compiler.ops.transform.split
import compiler.ops.transform.squeeze
import compiler.ops.transform.strided_slice
import compiler.ops.transform.transpose
