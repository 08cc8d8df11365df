"""A function as a flat list of operator calls: let, tuples and inner calls are resolved.

Exporters, the C target and the interval analysis of the proof read this form: values know the call
that computes them and the calls that read them, so that patterns are matched by looking around.
Calls of other functions of the module (quantize_inputs, quantized_main, dequantize_outputs) are
inlined, unless a reader wants them as single steps.

The reference executor (``targets/reference/plan.py``) and the wiring check of the proof
(``proof/wiring.py``) walk functions by code of their own: what they check is derived from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.errors import CompilerError, DataflowError
from compiler.ir.expr import (
    Array,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Quant,
    Tuple,
    TupleGetItem,
    Var,
    describe,
    is_op_call,
)
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, Type, is_dynamic, tensor_fields
from compiler.ir.walk import mentions
from compiler.span import AnySpan


@dataclass(slots=True, eq=False)
class Value:
    """One tensor: a function input, a constant, or result ``index`` of ``producer``."""

    type: TensorType
    producer: Step | None = None
    index: int = 0
    name: str = ""
    data: Array | None = None
    quant: Quant | None = None
    users: list[Step] = field(default_factory=list)

    @property
    def only_user(self) -> Step | None:
        """The single step that reads this value once; None when it is read elsewhere too."""
        if len(self.users) == 1:
            return self.users[0]
        return None


@dataclass(slots=True, eq=False)
class Step:
    """One operator call; tuple arguments and tuple results are flattened.

    ``body`` is what a scan runs in every step: its inputs are one step of the arguments.
    """

    op: Op
    attrs: Any
    args: tuple[Value, ...]
    results: tuple[Value, ...] = ()
    span: AnySpan | None = None
    body: Dataflow | None = None

    @property
    def name(self) -> str:
        """The operator."""
        return self.op.name

    @property
    def result(self) -> Value:
        """The result of a call with one."""
        return self.results[0]


Single = Callable[[Call], tuple[str, Sequence[Expr]] | None]
"""Name and arguments of a call that becomes one step; None for others: operators are steps under
their own name, functions are inlined."""


@dataclass(frozen=True, slots=True)
class Form:
    """Purpose for which functions are flattened, as errors name it.

    Attributes:
        name: "ONNX", "C".
        error: raised for what has no such form.
        tuples: parameters may be tuples; they are flattened.
        fix: added to the error for control flow and closures.
    """

    name: str
    error: type[CompilerError]
    tuples: bool = False
    fix: str | None = None


SCAN = "scan"
"""The operator whose first argument is a function."""
UNROLL_INNER = "write the steps of the inner loop one after another"
"""Cure for a loop within a loop, which only the text of a module can hold."""

LISTED = Form("dataflow", DataflowError)


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A function without scopes: steps come after the steps they read."""

    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]

    def constants(self) -> list[Array]:
        """Return the known values that its steps read, each once."""
        read = {id(v): v.data for step in self.steps for v in step.args if v.data is not None}
        return list(read.values())

    def flows(self) -> list[Dataflow]:
        """The flow itself, and the bodies of its loops."""
        return [self, *(step.body for step in self.steps if step.body is not None)]

    def unlink(self) -> None:
        """Steps forget their values, when all has been read: both know each other, and so reference
        counts alone would not free them."""
        for step in self.steps:
            if step.body is not None:
                step.body.unlink()
            step.args = step.results = ()


def values_of(flow: Dataflow) -> list[Value]:
    """Return the inputs and results of a flow, then those of the bodies of its loops."""
    return [
        value
        for one in flow.flows()
        for value in (*one.inputs, *(made for step in one.steps for made in step.results))
    ]


# A tensor, or a tuple of results; nested tuples are nested Python tuples.
Result = Any
Env = dict[Expr, Result]


def dataflow(mod: IRModule, function: str = "main", form: Form = LISTED) -> Dataflow:
    """Flatten one function of a typed module.

    Args:
        mod: a module after InferType; calls of its other functions are inlined.
        function: name of the function.
        form: what the steps are for.
    Raises:
        CompilerError: the error of ``form``: control flow, references, closures, unknown
            dimensions or recursion.
    """
    return flatten_function(mod[function], mod, form=form)


def flatten_function(
    fn: Function,
    mod: IRModule,
    single: Single = lambda _call: None,
    form: Form = LISTED,
    inlined: list[tuple[Call, tuple[Value, ...]]] | None = None,
) -> Dataflow:
    """``dataflow`` for a function object.

    Args:
        single: which calls become one step, under which name; without it functions are inlined.
        form: what the steps are for.
        inlined: calls that were inlined are appended, with their results, in order of execution.
    Raises:
        CompilerError: the error of ``form``: as ``dataflow``, and for parameters that are no
            tensors of static shape.
    """
    inputs: list[Value] = []
    env: Env = {}
    for param in fn.params:
        ty = param.checked_type
        if form.tuples or isinstance(ty, TensorType):
            fields = tensor_fields(ty)
        else:
            fields = []
        if not fields or any(is_dynamic(field) for field in fields):
            raise form.error(
                f"parameter %{param.name_hint} has type {ty}",
                fix="exported functions take tensors of static shape",
            )
        names = [param.name_hint]
        if len(fields) > 1:
            names = [f"{param.name_hint}_{number}" for number in range(len(fields))]
        values = [Value(each, name=n, quant=param.quant) for each, n in zip(fields, names)]
        inputs += values
        env[param] = _structured(ty, iter(values))
    flattener = _Flattener(mod, single, form)
    result = flattener.run(fn.body, env)
    if inlined is not None:
        inlined += [(call, tuple(_flat(made))) for call, made in flattener.inlined]
    outputs = tuple(_flat(result))
    for value in outputs:
        # An output is a reader like any other: a value that leaves must not be fused away.
        value.users.append(_OUTPUT)
    return Dataflow(tuple(inputs), tuple(flattener.steps), outputs)


_OUTPUT = Step(Op("output"), None, ())


class _Flattener:
    """The walk: an explicit stack of (expression, scope, state)."""

    def __init__(self, mod: IRModule, single: Single, form: Form) -> None:
        self.mod = mod
        self.single = single
        self.form = form
        self.singles: dict[Call, tuple[str, Sequence[Expr]]] = {}
        self.steps: list[Step] = []
        self.constants: dict[Constant, Value] = {}
        self.inlined: list[tuple[Call, Result]] = []

    def run(self, body: Expr, env: Env) -> Result:
        stack: list[tuple[str, Expr, Env, Any]] = [("visit", body, env, None)]
        while stack:
            state, node, scope, extra = stack.pop()
            if state == "visit":
                if node not in scope:
                    self._open(node, scope, stack)
            elif state == "bind":
                assert isinstance(node, Let)
                scope[node.var] = scope[node.value]
                stack.append(("copy", node, scope, (node.body, scope)))
                stack.append(("visit", node.body, scope, None))
            elif state == "copy":
                source, inner = extra
                scope[node] = inner[source]
                if isinstance(node, Call):
                    self.inlined.append((node, scope[node]))
            else:
                self._close(node, scope, stack)
        return env[body]

    def _open(self, node: Expr, scope: Env, stack: list[tuple[str, Expr, Env, Any]]) -> None:
        if isinstance(node, Constant):
            if node not in self.constants:
                self.constants[node] = Value(node.tensor_type, data=node.data)
            scope[node] = self.constants[node]
        elif isinstance(node, Let):
            stack.append(("bind", node, scope, None))
            stack.append(("visit", node.value, scope, None))
        elif isinstance(node, (Call, Tuple, TupleGetItem)):
            stack.append(("close", node, scope, None))
            operands: Sequence[Expr] = node.operands()
            if isinstance(node, Call):
                if is_op_call(node, SCAN):
                    operands = node.args[1:]
                else:
                    operands = node.args
                single = self.single(node)
                if single is not None:
                    self.singles[node] = single
                    operands = single[1]
            stack.extend(("visit", arg, scope, None) for arg in reversed(operands))
        elif isinstance(node, GlobalVar) and isinstance(self.mod[node], Function):
            scope[node] = self.mod[node]  # the body of a loop
        elif isinstance(node, Var):
            raise self.form.error(
                f"%{node.name_hint} is free in the exported function",
                fix="bind it to a constant or make it a parameter",
            )
        else:
            raise self._no_form(node)

    def _no_form(self, node: Expr) -> CompilerError:
        what = f"{describe(node)} has no {self.form.name} form"
        return self.form.error(what, fix=self.form.fix, span=node.span)

    def _close(self, node: Expr, scope: Env, stack: list[tuple[str, Expr, Env, Any]]) -> None:
        if isinstance(node, Tuple):
            scope[node] = tuple(scope[f] for f in node.fields)
        elif isinstance(node, TupleGetItem):
            field = scope[node] = scope[node.tuple][node.index]
            if node.quant is not None and isinstance(field, Value):
                field.quant = field.quant or node.quant
        else:
            assert isinstance(node, Call)
            if node in self.singles:
                name, args = self.singles[node]
                scope[node] = self._step(node, Op(name), args, scope)
                return
            if isinstance(node.op, Op) and node.op.name == SCAN:
                scope[node] = self._loop(node, scope)
                return
            if isinstance(node.op, Op):
                scope[node] = self._step(node, node.op, node.args, scope)
                return
            callee = node.op
            if isinstance(callee, GlobalVar):
                callee = self.mod[callee]
            if not isinstance(callee, Function):
                raise self._no_form(node)
            self._refuse_recursion(callee, stack)
            inner: Env = {p: scope[a] for p, a in zip(callee.params, node.args)}
            stack.append(("copy", node, scope, (callee.body, inner)))
            stack.append(("visit", callee.body, inner, None))

    def _refuse_recursion(
        self, callee: Function, stack: Sequence[tuple[str, Expr, Env, Any]]
    ) -> None:
        bodies = [extra[0] for state, _, _, extra in stack if state == "copy"]
        if callee.body in bodies:
            raise self.form.error(f"a recursive function has no {self.form.name} form")

    def _loop(self, node: Call, scope: Env) -> Result:
        """A scan with the flow of its body."""
        body = scope.get(node.args[0], node.args[0])
        if not isinstance(body, Function):
            raise self._no_form(node)
        if mentions(body, (SCAN,)):
            raise self.form.error(
                f"a loop within a loop has no {self.form.name} form",
                fix=UNROLL_INNER,
                span=node.span,
            )
        result = self._step(node, Op.get(SCAN), node.args[1:], scope)
        step = self.steps[-1]
        step.body = flatten_function(body, self.mod, self.single, replace(self.form, tuples=True))
        _, constants = step.attrs.borders(len(step.body.outputs))
        for value, arg in zip(step.body.inputs[constants:], step.args[constants:], strict=True):
            value.data = arg.data  # what is known in front of the loop is known in it
        return result

    def _step(self, node: Call, op: Op, read: Sequence[Expr], scope: Mapping[Expr, Any]) -> Result:
        args = tuple(v for a in read for v in _flat(scope[a]))
        types = tensor_fields(node.checked_type)
        if any(is_dynamic(t) for t in types):
            raise self.form.error(
                f"{op.name} has a dynamic type {node.checked_type}",
                fix="import the model with static shapes",
                span=node.span,
            )
        step = Step(op, node.attrs, args, span=node.span)
        step.results = tuple(Value(t, step, i, quant=node.quant) for i, t in enumerate(types))
        for arg in args:
            arg.users.append(step)
        self.steps.append(step)
        return _structured(node.checked_type, iter(step.results))


def _structured(ty: Type, values: Iterator[Value]) -> Result:
    """Values in the nesting of a type; types nest as deep as ``MAX_NESTING`` at most."""
    if isinstance(ty, TupleType):
        return tuple(_structured(field, values) for field in ty.fields)
    return next(values)


def _flat(result: Result) -> list[Value]:
    """The tensors of a possibly nested tuple, left to right."""
    found: list[Value] = []
    stack = [result]
    while stack:
        top = stack.pop()
        if isinstance(top, Value):
            found.append(top)
        else:
            stack.extend(reversed(top))
    return found
