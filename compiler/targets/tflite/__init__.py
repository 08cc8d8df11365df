"""LiteRT files run by the interpreters that judge them."""
