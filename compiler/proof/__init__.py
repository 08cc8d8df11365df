"""What a quantized module is shown to be: dtypes, ranges of every value, and agreeing executors."""
