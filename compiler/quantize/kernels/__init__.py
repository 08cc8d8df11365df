"""Counting and searching loops, in C when a compiler is there and in numpy with the same bits."""
