"""FuseOpHW: operators grouped along the pipeline of units that a hardware description declares."""
