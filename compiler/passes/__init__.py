"""Graph passes: one file per pass, with Relay's name in snake case. README.md lists them."""
