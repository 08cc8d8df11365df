"""Plots of a study as SVG, one a file; the dashboard and the report draw the same ones.

No script and no style attribute is in them: colours are classes that the page, or ``alone``, sets.
"""
