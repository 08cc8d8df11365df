"""The graph IR: types, expressions, modules, text, visitors; no operators."""

from compiler.ir import printer as printer  # registers what print() shows of a node
