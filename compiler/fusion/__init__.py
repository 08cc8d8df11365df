"""Which operators become one kernel: FuseOps; ``hardware`` holds FuseOpHW. See README.md."""
