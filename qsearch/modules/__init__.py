"""Functions for one model or .qmod: quantize, analyse, draw, compare, run, prove, export."""
