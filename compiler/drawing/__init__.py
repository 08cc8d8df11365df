"""Drawings of a module: boxes for operators, edges with their types, a frame per function.

``draw(mod, "dot" | "json")`` gives the whole file as text.
"""

from compiler.drawing.formats import FORMATS, draw

__all__ = ["FORMATS", "draw"]
