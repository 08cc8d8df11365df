"""The loop-level form: perfect loop nests over buffers, printed, parsed, verified and executed."""

from compiler.lir import printer as printer  # registers the text of a PrimFunc
from compiler.lir import reference as reference  # registers how it is computed
