"""qsearch: search for the quantization of a model that keeps its accuracy, on integers only.

``launch`` searches. ``quantize``, ``insight``, ``doctor``, ``diff``, ``verify``, ``export`` and
``load`` work on one model or module; ``status``, ``trials``, ``best``, ``compare``, ``stop`` and
``delete`` on stored studies. ``Client`` talks to a server. Every name is imported on first use, so
that ``import qsearch`` stays cheap.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing takes as long to import as all else that is read here
if TYPE_CHECKING:
    from compiler.difference import Difference as Difference
    from compiler.runtime.artifact import QModule as QModule
    from qsearch.commands.analysis import ModelDiagnosis as ModelDiagnosis
    from qsearch.commands.analysis import ModelInsight as ModelInsight
    from qsearch.commands.analysis import doctor as doctor
    from qsearch.commands.analysis import insight as insight
    from qsearch.commands.export import ExportedFiles as ExportedFiles
    from qsearch.commands.export import export as export
    from qsearch.commands.judgement import Judgement as Judgement
    from qsearch.commands.judgement import judge as judge
    from qsearch.commands.profiling import ModuleProfile as ModuleProfile
    from qsearch.commands.profiling import profile as profile
    from qsearch.commands.quantization import quantize as quantize
    from qsearch.commands.running import load as load
    from qsearch.commands.running import run_module as run_module
    from qsearch.commands.studies import best as best
    from qsearch.commands.studies import compare as compare
    from qsearch.commands.studies import delete as delete
    from qsearch.commands.studies import status as status
    from qsearch.commands.studies import stop as stop
    from qsearch.commands.studies import trials as trials
    from qsearch.commands.studies import try_qconfig as try_qconfig
    from qsearch.commands.trial_module import write_trial as write_trial
    from qsearch.commands.verification import Verification as Verification
    from qsearch.commands.verification import verify as verify
    from qsearch.commands.views import diff as diff
    from qsearch.commands.views import show as show
    from qsearch.data.object_data import Dataset as Dataset
    from qsearch.opening.open_model import DataSource as DataSource
    from qsearch.report.html import write_report as write_report
    from qsearch.run.signing import keygen as keygen
    from qsearch.search.launch import launch as launch
    from qsearch.search.result import SearchResult as SearchResult
    from qsearch.server.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'qsearch' has no attribute {name!r}")
    check_own_packages()
    from compiler.lazy_names import lazy_names

    load, public = lazy_names(__name__)
    if name == "__all__":
        return public
    return load(name)


def __dir__() -> list[str]:
    from compiler.lazy_names import lazy_names

    return lazy_names(__name__)[1]


_OURS = ("compiler", "workers")


class ForeignPackageError(Exception):
    """``compiler`` or ``workers`` belong to another distribution; says what, where and fix.

    Not one of the service's errors: those need the packages that are not ours here.
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  fix: {fix}")


def check_own_packages() -> None:
    """Refuse to run beside a foreign ``compiler`` or ``workers``.

    Raises:
        ForeignPackageError: one of them is missing or lies elsewhere than ``qsearch``.
    """
    from importlib.util import find_spec

    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in _OURS:
        spec = find_spec(name)
        if spec:
            found = next(iter(spec.submodule_search_locations or ()), spec.origin)
        else:
            found = None
        if found is not None and os.path.realpath(found) == os.path.join(home, name):
            continue
        if found is None:
            raise ForeignPackageError(
                f"the package {name!r} of qsearch is missing",
                where=home,
                fix="install the distribution again: pip install --force-reinstall qsearch",
            )
        raise ForeignPackageError(
            f"the package {name!r} that Python finds is not the one of qsearch",
            where=f"found {found}, expected {os.path.join(home, name)}",
            fix=(
                f"another distribution or a folder on PYTHONPATH is also called {name!r}: "
                "remove it, or run qsearch in a virtual environment of its own"
            ),
        )
