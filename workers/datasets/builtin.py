"""The datasets of this package: each file of the folder registers itself when it is imported."""

from importlib import import_module
from pkgutil import iter_modules

from workers import datasets

for _module in iter_modules(datasets.__path__, "workers.datasets."):
    import_module(_module.name)
