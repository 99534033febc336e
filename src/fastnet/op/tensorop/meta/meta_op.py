"""What ops share that run other ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import implementation_of
from fastnet.frameworks import part_of
from fastnet.op.around import AroundOps
from fastnet.op.checks import check_keys
from fastnet.op.meta_checks import require_ops
from fastnet.op.op import is_overridden, takes_gradients
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, Model, State, Tensor, is_tensor_op

if TYPE_CHECKING:
    import torch


class MetaOp(AroundOps, TensorOp):
    """An op around other ops. Derive from it, and define `make_run`.

    Args:
        ops: The ops.
        inputs: The keys that they need.
        outputs: The keys that they write.

    Raises:
        ValueError: If there is no op, or they differ in their modes or dataset ids.
        TypeError: If something is no op.
    """

    calls_user_code = True

    def __init__(self, ops: Sequence[Any], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        super().__init__(
            inputs=list(inputs), outputs=list(outputs), mode=ops[0].mode, ds_id=ops[0].ds_id
        )
        self.hold(ops)
        self._retain_graph = False
        self._control: Any = None
        self._runs: dict[bool, Forward] = {}

    def __getstate__(self) -> dict[str, Any]:
        # a copy has ops of its own to run
        return {**super().__getstate__(), "_runs": {}}

    @classmethod
    def require_ops(cls, ops: Sequence[Any], mismatch: type[Exception] = ValueError) -> None:
        """Refuse what cannot run inside of this op.

        Args:
            ops: The ops.
            mismatch: What is raised if they differ in their modes or dataset ids.

        Raises:
            ValueError: If there is no op.
            TypeError: If something is no op.
        """
        require_ops(cls.__name__, ops, "TensorOp", is_tensor_op, mismatch)

    def check_keys(self) -> None:
        """Ask each of the ops whether its keys are fine, when a network is made of this one.

        Raises:
            ValueError: If they are not.
        """
        check_keys(self.ops)

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Get the ops ready for a framework.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self._control = part_of(framework, "control", type(self).__name__)
        self._runs = {}
        for op in self.ops:
            if hasattr(op, "build"):
                op.build(framework, device)

    def get_fe_models(self) -> set[Model]:
        """Return the models that the ops hold."""
        return self._united("get_fe_models")

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the ops minimise."""
        return self._united("get_fe_loss_keys")

    def _united(self, method: str) -> set[Any]:
        return set().union(*[getattr(op, method)() for op in self.ops if hasattr(op, method)])

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Read, or set, whether the last of the ops that take gradients keeps its graph.

        Args:
            retain: The new setting, or None to leave it.

        Returns:
            The setting, or None if none of the ops takes gradients.
        """
        if not any(map(takes_gradients, self.ops)):
            return None
        if retain is not None:
            self._retain_graph = retain
        return self._retain_graph

    def abandon(self) -> None:
        """Let the ops go of what a step that failed has left."""
        for op in self.ops:
            if hasattr(op, "abandon"):
                op.abandon()

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return a forward with the settings that a network has for the op, which keeps its own.

        Args:
            defer: Whether the network wants updates after its last op.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What to call instead of `forward`, or None where that was overridden, be it by a derived
            class, in the class itself, or on this op.
        """
        if is_overridden(self, _FORWARD):
            return None
        return self._run(retain_graph)

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Run the ops.

        Args:
            data: The values of the inputs.
            state: The step's context.

        Returns:
            The values of the outputs.
        """
        return self._run(self._retain_graph)(data, state)

    def _run(self, retain_graph: bool) -> Forward:
        if self._control is None:  # an op that was not built for a framework may still change
            return self.make_run(retain_graph)
        run = self._runs.get(retain_graph)
        if run is None:
            run = self._runs[retain_graph] = self.make_run(retain_graph)
        return run

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle all that is the same in each step.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What runs the ops: like `forward`, it takes the values of the inputs and the step's
            context, and returns the values of the outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_run.")

    def control_for(self, data: Any) -> Any:
        """Find the framework's choices and loops.

        Args:
            data: Values of the inputs, for an op that was not built for a framework.

        Returns:
            A module with `chooser`, `one_of`, and `repeat_while`.
        """
        if self._control is not None:
            return self._control
        first = data[0] if isinstance(data, (list, tuple)) else data
        return implementation_of(self, first, "control")


# as it is here, whatever is put into its place
_FORWARD = MetaOp.forward
