"""What is done with one model or one .qmod: quantize, analyse, look at, prove, sign, export."""
