"""Type inference: constraints are collected, solved, and types put on nodes."""
