"""Where scales come from: statistics of the float network and the modes that read them."""
