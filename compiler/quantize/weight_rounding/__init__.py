"""Round weights by the error of their layer's output, and correct biases for what is left."""
