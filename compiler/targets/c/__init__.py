"""The C code generator, and C kernels compiled on demand."""
