"""The graph IR: types, expressions, modules, text, visitors; no operators."""

from compiler.ir.op import register_op_attr as register_op_attr
from compiler.ir.text import printer as printer  # registers what print() shows of a node
