"""Every operator: importing this package registers them and their rules.

One operator, one file; README.md says how to add one, `python -m compiler.ops` what is there.
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, "compiler.ops."):
    if not _module.name.endswith("__main__"):
        import_module(_module.name)
