"""Drawings of a module: boxes for operators, edges with their types, a frame per function.

``draw(mod, "dot" | "svg")`` gives the whole file as text; nothing external is needed to
look at it.
"""

from compiler.drawing.formats import FORMATS, draw

__all__ = ["FORMATS", "draw"]
