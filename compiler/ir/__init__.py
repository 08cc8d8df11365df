"""The graph IR: types, expressions, modules, text, visitors; no operators."""
