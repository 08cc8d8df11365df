"""The judgement of an int8 ONNX file of any author: overflow, machines, measurement, float model.

``layers.read_network`` writes every form as DequantizeLinear, operator, QuantizeLinear and names
the integer products; ``exact`` evaluates the file by ONNX's definition, ``nodes`` a node of it;
``overflow`` bounds accumulators and biases; ``machines`` says where kernels of other processors
give other answers; ``float_model`` compares the grids with the float model.
"""
