"""Group operators into kernels: FuseOps; ``hardware`` holds FuseOpHW. See README.md."""
