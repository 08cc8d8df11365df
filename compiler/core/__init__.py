"""The integer words, and every other integer operator as a composition of them."""
