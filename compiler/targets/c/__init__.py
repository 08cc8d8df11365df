"""C compiled on demand; the C code generator will live here."""
