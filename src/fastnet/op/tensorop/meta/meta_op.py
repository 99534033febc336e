"""Ops that run other tensor ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import add_note, describe_op
from fastnet.op.meta_op import MetaOp
from fastnet.op.op import get_inputs_by_op, is_delete, is_overridden, write_outputs_by_op
from fastnet.op.tensorop.foreign_op import as_tensor_op, bind_forward, takes_gradients
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, Model, State, is_tensor_op

if TYPE_CHECKING:
    import torch

__all__ = ["TensorMetaOp", "forward_of"]


class TensorMetaOp(MetaOp, TensorOp):
    """An op that runs other tensor ops. The `option` of `MetaOp` is `retain_graph`."""

    calls_user_code = True
    kind = "TensorOp"

    def __init__(self, ops: Sequence[Any], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        super().__init__(ops, inputs, outputs)
        self.retain_graph = False
        # The functions that `make_run` returned since the op was built, by `retain_graph`.
        self._runs: dict[bool, Forward] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy must run its own ops.
        return {**super().__getstate__(), "_runs": {}}

    @classmethod
    def check_op(cls, op: Any, index: int) -> bool:
        """Return whether an op is a tensor op."""
        return is_tensor_op(op)

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Build the inner ops; see `TensorOp.build`."""
        super().build(framework, device)
        self._runs = {}
        for op in self.ops:
            as_tensor_op(op).build(framework, device)

    def get_fe_models(self) -> set[Model]:
        """Return the models that the inner ops hold."""
        return set().union(*(as_tensor_op(op).get_fe_models() for op in self.ops))

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the inner ops minimize."""
        return set().union(*(as_tensor_op(op).get_fe_loss_keys() for op in self.ops))

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the last inner op that takes gradients retains the graph."""
        if not any(map(takes_gradients, self.ops)):
            return None
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    @property
    def needs_graph(self) -> bool:
        """Whether an inner op differentiates a graph."""
        return any(as_tensor_op(op).needs_graph for op in self.ops)

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return the function to call instead of `forward`, or None if that is overridden.

        The network decides `retain_graph`; the op keeps its own setting.
        """
        return None if is_overridden(self, _FORWARD) else self._get_run(retain_graph)

    def forward(self, data: Any, state: State) -> Any:
        """Run the inner ops."""
        return self._get_run(self.retain_graph)(data, state)

    def _get_run(self, retain_graph: bool) -> Forward:
        """Return the result of `make_run`, which is made once for an op that was built."""
        if self._framework is None:
            # The settings of an op that was not built take effect in each call.
            return self.make_run(retain_graph)
        run = self._runs.get(retain_graph)
        if run is None:
            run = self._runs[retain_graph] = self.make_run(retain_graph)
        return run

    def chain(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        option: bool,
        times: int = 1,
        may_repeat: bool = False,
    ) -> Forward:
        """Return the function that runs all inner ops in order; see `MetaOp.chain`.

        `option` is `retain_graph`: whether a later op differentiates the same graph.
        """
        ops = self.ops * times
        need_graph = [index for index, op in enumerate(ops) if as_tensor_op(op).needs_graph]
        # Only the last op that differentiates may free the graph.
        frees_graph = None
        if need_graph and not (option or may_repeat):
            frees_graph = need_graph[-1]
        steps = tuple(
            _step_of(op, index % len(self.ops), retain_graph=index != frees_graph)
            for index, op in enumerate(ops)
        )
        only_key = inputs[0] if len(inputs) == 1 else None

        # One frame for all ops, because TensorFlow records the Python stack with each operation.
        def run(data: Any, state: State) -> list[Any]:
            store = (
                dict(zip(inputs, data, strict=True)) if only_key is None else {only_key: data[0]}
            )
            try:
                for forward, source, target, in_list, details in steps:
                    if source in store:
                        data = store[source]
                        store[target] = forward([data] if in_list else data, state)
                    else:
                        op, _, deleted = details
                        data = get_inputs_by_op(op, store)
                        for key in deleted:
                            del store[key]
                        write_outputs_by_op(op, store, forward(data, state))
            except Exception as error:
                op, index, _ = details
                add_note(error, f"Raised by the inner op {describe_op(op, index)}.")
                raise
            return [store[key] for key in outputs]

        return run

    def forward_of(self, op: Any, option: bool) -> Forward:
        """Return the forward of an inner op; `option` is `retain_graph`."""
        return forward_of(op, option)

    def choose(self, prob: float, yes: Forward, no: Forward) -> Forward:
        """Return a function that calls one of two at random."""
        if self._framework is not None:
            chosen: Forward = self.backend.chooser(prob, yes, no)
            return chosen

        def run(data: Any, state: State) -> Any:
            return self.control(data).chooser(prob, yes, no)(data, state)

        return run

    def control(self, data: Any) -> Any:
        """Return the backend, which the inputs decide if the op was not built."""
        if self._framework is not None:
            return self.backend
        first = data[0] if isinstance(data, (list, tuple)) else data
        return self._backend_of(first, "chooser")


# Keep the original function, because users may replace TensorMetaOp.forward.
_FORWARD = TensorMetaOp.forward


def forward_of(op: Any, retain_graph: bool) -> Callable[..., Any]:
    """Return an op's forward, bound to the decision whether to retain the graph."""
    if takes_gradients(op):
        return bind_forward(op, defer=False, retain_graph=retain_graph)
    bound = op.bind(False, retain_graph) if isinstance(op, TensorMetaOp) else None
    forward: Callable[..., Any] = bound or op.forward
    return forward


def _step_of(op: Any, index: int, retain_graph: bool) -> tuple[Any, ...]:
    """Return an op's forward, its only input and output, `in_list`, and (op, index, deleted)."""
    deleted = tuple(op.inputs) if is_delete(op) else ()
    details = op, index, deleted
    forward = forward_of(op, retain_graph)
    if len(op.inputs) == len(op.outputs) == 1 and not (op.out_list or deleted):
        return forward, op.inputs[0], op.outputs[0], op.in_list, details
    # No value has the key None, so `chain` reads the keys from the op.
    return forward, None, None, op.in_list, details
