"""Rules of NPU compilers for QDQ files, as their makers publish them; no NPU was run.

``rules.py`` reads a file and holds the rules that several have in common; a profile is one file:
the fields of a QConfig whose modules such files can hold, and its rules. ``broken`` gives all that
a file breaks, ``require`` refuses one. One more profile: a file here, its name below, its
``Runtime`` in ``export/to_onnx/qdq/emitter.py`` and its line in ``profiles.py``.
"""

from typing import Final

NPUS: Final = ("ryzenai", "qnn")
"""Names of the profiles, for who needs no more of them."""
