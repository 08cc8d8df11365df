"""The loop-level form: perfect loop nests over buffers, printed, parsed, verified and executed."""
