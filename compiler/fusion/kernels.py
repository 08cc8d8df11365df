"""KernelBuilder: writes each group as a primitive function and calls it in place of its sink.

Parameters ``p0, p1, …`` are numbered as the operators of the kernel ask for them, operands before
users; an argument that two operators read is one parameter. Source: Relay v0.10 fuse_ops.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.fusion.groups import Groups
from compiler.fusion.indexed_graph import IndexedForwardGraph, is_inlined
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Call, Expr, Function, Op, Tuple, TupleGetItem, Var
from compiler.ir.functor.mixed_mode import MixedModeMutator
from compiler.ir.op import NON_COMPUTATIONAL, RESHAPE
from compiler.ir.ty import FuncType, TensorType
from compiler.passes.opaque_primitives import is_kernel

STOP_FUSION = "annotation.stop_fusion"


class _Kernel:
    """The kernel of one group, while its members are rewritten."""

    __slots__ = ("args", "has_call", "param_of", "params", "reshapes_only")

    def __init__(self) -> None:
        self.params: list[Var] = []
        self.args: list[Expr] = []
        self.param_of: dict[Expr, Var] = {}
        self.has_call = False
        self.reshapes_only = True

    def param(self, old: Expr, new: Expr) -> Var:
        """The parameter that stands for an argument from outside."""
        held = self.param_of.get(new)
        if held is None:
            ty = old.checked_type
            held = Var(f"p{len(self.params)}", ty)
            held.set_checked_type(ty)
            self.param_of[new] = held
            self.params.append(held)
            self.args.append(new)
        return held


class KernelBuilder(MixedModeMutator):
    """Rewrites a function by its groups. Every node keeps the type it had.

    Args:
        graph: of the typed function.
        groups: which nodes belong together.
        link_params: constants lie inside the kernels.
    """

    def __init__(
        self, graph: IndexedForwardGraph, groups: Groups, *, link_params: bool = False
    ) -> None:
        super().__init__()
        self._graph = graph
        self._groups = groups
        self._link_params = link_params
        self._kernels: dict[int, _Kernel] = {}

    def visit_function(self, function: Function, *args: object) -> Expr:
        if is_kernel(function):
            return function
        return super().visit_function(function)

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        op = pre.op
        if not isinstance(op, Op) or NON_COMPUTATIONAL in op.flags:
            return post
        if op.name == STOP_FUSION:
            return post.args[0]
        kernel, index, root = self._kernel(pre)
        args = self._arguments(kernel, root, pre.args, post.args)
        kernel.has_call = True
        kernel.reshapes_only &= RESHAPE in op.flags
        placed = pre.virtual_device
        new = Call(op, args, pre.attrs, span=pre.span, quant=pre.quant, virtual_device=placed)
        return self._member(kernel, pre, new, is_result=index == root)

    def rewrite_tuple(self, pre: Tuple, post: Tuple) -> Expr:
        kernel, index, root = self._kernel(pre)
        if index == root:
            return post
        fields = self._arguments(kernel, root, pre.fields, post.fields)
        new = Tuple(fields, span=pre.span, virtual_device=pre.virtual_device)
        return self._member(kernel, pre, new, is_result=False)

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
        kernel, index, root = self._kernel(pre)
        if index == root and self._root(pre.tuple) != root:
            return post
        (tup,) = self._arguments(kernel, root, (pre.tuple,), (post.tuple,))
        new = TupleGetItem(tup, pre.index, span=pre.span, virtual_device=pre.virtual_device)
        return self._member(kernel, pre, new, is_result=index == root)

    def _root(self, expr: Expr) -> int:
        node = self._graph.of.get(expr)
        if node is None:
            return -1
        return self._groups.root(node.index)

    def _kernel(self, expr: Expr) -> tuple[_Kernel, int, int]:
        """The kernel a node goes into, its own index, and that of the kernel's result."""
        index = self._graph.of[expr].index
        root = self._groups.root(index)
        kernel = self._kernels.get(root)
        if kernel is None:
            kernel = self._kernels[root] = _Kernel()
        return kernel, index, root

    def _arguments(
        self, kernel: _Kernel, root: int, old: Sequence[Expr], new: Sequence[Expr]
    ) -> tuple[Expr, ...]:
        inside = [self._root(was) == root or is_inlined(was, self._link_params) for was in old]
        return tuple(
            [
                mine if stays else kernel.param(was, mine)
                for was, mine, stays in zip(old, new, inside)
            ]
        )

    def _member(self, kernel: _Kernel, pre: Expr, new: Expr, *, is_result: bool) -> Expr:
        """``new`` for its consumers in the kernel, or the call of the finished kernel."""
        ty = pre.checked_type
        new.set_checked_type(ty)
        if not is_result:
            return new
        attrs: dict[str, object] = {"Primitive": int(kernel.has_call)}
        tensors = all(isinstance(p.type_annotation, TensorType) for p in kernel.params)
        if kernel.has_call and kernel.reshapes_only and tensors:
            attrs["relay.reshape_only"] = 1
        function = Function(
            tuple(kernel.params),
            new,
            ty,
            attrs=DictAttrs(attrs),
            span=pre.span,
            virtual_device=pre.virtual_device,
        )
        function.set_checked_type(FuncType(tuple(p.checked_type for p in kernel.params), ty))
        args = tuple(kernel.args)
        placed = pre.virtual_device
        call = Call(function, args, span=pre.span, quant=pre.quant, virtual_device=placed)
        # Inference does not look below a typed node, and some kinds of argument have lost theirs.
        if all(arg.checked_type_or_none is not None for arg in kernel.args):
            call.set_checked_type(ty)
        return call
