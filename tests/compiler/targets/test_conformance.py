from __future__ import annotations

from compiler.export.to_onnx.float_model import to_onnx
from compiler.ir.module import IRModule
from compiler.pipeline import lower
from compiler.runtime.executor import Executor
from compiler.targets.c.executor import CExecutor
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from compiler.testing.conformance import ExecutorTestCase
from tests.needs import NEEDS_C


class TestReferenceExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return ReferenceExecutor(mod)


class TestOrtExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return OrtExecutor(to_onnx(mod))


@NEEDS_C
class TestCExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return CExecutor(mod)


class TestLoweredOnNumpy(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return lower(mod, target="reference")
