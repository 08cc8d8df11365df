"""From fused Relay to lowered functions and compiled modules: LowerTE. See README.md."""
