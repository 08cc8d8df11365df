"""LoweredModule: a lowered module that can be run, printed, saved and read back.

The Relay functions around the kernels run as steps over numbered slots, a slot emptied by the step
that reads it last; kernels run by the target each was lowered for; what only reshapes is another
view of its argument. In a .qmod its members are ``lir.txt`` (Relay text with the PrimFuncs),
``lir.bin`` (constants), ``external/*.bin`` (files of external modules) and ``lir.json`` (target,
and which files belong to which external module).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import numpy as np

from compiler.errors import ArtifactError, CompilerError, raised_as
from compiler.ir.expr import Array, Function
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.runtime.archive import json_bytes, read_archive, read_json, write_archive
from compiler.runtime.exact_executor import EXECUTOR_FACTORIES
from compiler.runtime.executor import Executor, Inputs, ordered_inputs
from compiler.runtime.external_module import ExternalModule, external_loaders
from compiler.runtime.kernels import module_kernels
from compiler.runtime.packed import pack, unpack

TEXT = "lir.txt"
TENSORS = "lir.bin"
INDEX = "lir.json"


@dataclass(frozen=True, slots=True, eq=False)
class LoweredModule:
    """Result of ``compiler.lower``; safe to run from several threads.

    Args:
        mod: after LowerTE, typed.
        target: text of the target of plain kernels.
    """

    mod: IRModule
    target: str = "c"
    _executors: dict[tuple[str, str | None], Executor] = field(default_factory=dict, repr=False)

    @property
    def main(self) -> Function:
        """The function that ``run`` runs."""
        function: Function = self.mod["main"]
        return function

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(p.name_hint for p in self.main.params)

    def run(
        self, inputs: Inputs, kernels: str | None = None, function: str = "main"
    ) -> list[Array]:
        """The results, tuples flattened from left to right.

        Args:
            inputs: an array per parameter, by name or in order; dtypes and shapes as declared.
            kernels: runs PrimFuncs on this kind of target ("reference", "c") instead of their own.
            function: name of the global function.
        Raises:
            EvaluationError: the inputs do not fit.
            LoweringError: a target that nothing here can run.
            CodegenError: the code generator of a target failed.
        """
        executor = self._executor(function, kernels)
        return executor.run(list(map(np.asarray, ordered_inputs(executor.input_names, inputs))))

    def _executor(self, function: str, kernels: str | None) -> Executor:
        key = (function, kernels)
        if key not in self._executors:
            # The walk over the graph is the reference target's.
            factory: Callable[..., Executor] = resolve_name(EXECUTOR_FACTORIES["reference"])
            made = factory(self.mod, function, kernels=module_kernels(self.mod, kernels))
            self._executors[key] = made
        return self._executors[key]

    def text(self, show_types: bool = True) -> str:
        """Relay text with the PrimFuncs."""
        return text(self.mod, show_types)

    def members(self) -> dict[str, bytes]:
        """Members of a .qmod that hold this module."""
        tensors: dict[str, Array] = {}
        shown = text(self.mod, external_data=tensors, show_spans=False)
        members = {TEXT: shown.encode(), TENSORS: pack(tensors)}
        externals: list[dict[str, Any]] = []
        for number, external in enumerate(self.mod.attrs.get("external_mods", ())):
            files: dict[str, str] = {}
            for name, data in sorted(external.members().items()):
                member = f"external/m{number}_{len(files)}.bin"
                files[name] = member
                members[member] = data
            externals.append({"kind": external.kind, "files": files})
        members[INDEX] = json_bytes({"target": self.target, "externals": externals})
        return members

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module as one .qmod; equal modules write equal bytes.

        Raises:
            ArtifactError: the file cannot be written.
        """
        write_archive(path, self.members())

    @staticmethod
    def from_members(members: Mapping[str, bytes]) -> LoweredModule:
        """The module that ``members()`` gave.

        Raises:
            ArtifactError: members are missing or damaged.
        """
        if not {TEXT, TENSORS, INDEX} <= members.keys():
            raise ArtifactError(
                f"the file holds no lowered module: it lacks {TEXT!r}",
                fix="lower the module again: compiler.lower(qmod.module).save(path)",
            )
        index = read_json(members[INDEX], INDEX)
        tensors = unpack(members[TENSORS], TENSORS)
        with raised_as(
            ArtifactError,
            "the lowered module cannot be read",
            CompilerError,
            UnicodeDecodeError,
            KeyError,
            TypeError,
            AttributeError,
            fix="use the qsearch that wrote it",
        ):
            mod = infer_module(
                parse(members[TEXT].decode(), source_name=TEXT, external_data=tensors)
            )
            externals = tuple(_external(entry, members) for entry in index["externals"])
            target = str(index["target"])
        return LoweredModule(
            mod.with_attr("external_mods", externals) if externals else mod, target
        )

    @staticmethod
    def load(path: str | os.PathLike[str]) -> LoweredModule:
        """Read a .qmod that holds a lowered module.

        Raises:
            ArtifactError: the file is missing, damaged, or holds none.
        """
        return LoweredModule.from_members(read_archive(path))


def _external(entry: Mapping[str, Any], members: Mapping[str, bytes]) -> ExternalModule:
    load = external_loaders.require(entry["kind"])
    return load({name: members[member] for name, member in entry["files"].items()})
