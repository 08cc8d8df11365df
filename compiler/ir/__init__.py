"""The language: types, expressions, modules, text, visitors; no single operator."""
