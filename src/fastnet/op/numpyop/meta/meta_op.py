"""What numpy ops share that run other numpy ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastnet.op.around import AroundOps
from fastnet.op.checks import check_keys
from fastnet.op.meta_checks import require_ops
from fastnet.op.numpyop.numpyop import Batch, NumpyOp, forward_numpyop
from fastnet.types import State, is_numpy_op

__all__ = ["MetaNumpyOp"]


class MetaNumpyOp(AroundOps, NumpyOp):
    """A numpy op around other numpy ops. Derive from it, and define `run`.

    Args:
        ops: The ops.
        inputs: The keys that they need.
        outputs: The keys that they write.
    """

    def __init__(self, ops: Sequence[Any], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        super().__init__(
            inputs=list(inputs), outputs=list(outputs), mode=ops[0].mode, ds_id=ops[0].ds_id
        )
        self.hold(ops)

    @classmethod
    def require_ops(cls, ops: Sequence[Any], mismatch: type[Exception] = ValueError) -> None:
        """Refuse what cannot run inside of this op.

        Args:
            ops: The ops.
            mismatch: What is raised if they differ in their modes or dataset ids.

        Raises:
            ValueError: If there is no op, or one of them is a Batch.
            TypeError: If something is no numpy op.
        """
        for place, op in enumerate(ops):
            if isinstance(op, Batch) or hasattr(op, "collate_fn"):
                raise ValueError(
                    f"The op {place} of {cls.__name__} is a Batch, which stands among the ops of a "
                    "pipeline only."
                )
        require_ops(cls.__name__, ops, "NumpyOp", is_numpy_op, mismatch)

    def check_keys(self) -> None:
        """Ask each of the ops whether its keys are fine, when a network is made of this one.

        Raises:
            ValueError: If they are not.
        """
        check_keys(self.ops)

    def forward(self, data: Any, state: State) -> Any:
        """Run the ops on a sample.

        Args:
            data: The value of the input, or a list of values.
            state: The context.

        Returns:
            The value of the output, or a list of values, or what leaves the sample out.
        """
        return self.run(data, state, None)

    def forward_batch(self, data: Any, state: State) -> Any:
        """Run the ops on a batch.

        Args:
            data: The batched array of the input, or a list of arrays.
            state: The context.

        Returns:
            The array of the output, or a list of arrays, or what leaves the batch out.
        """
        return self.run(data, state, "np")

    def run(self, data: Any, state: State, batched: str | None) -> Any:
        """Run the ops.

        Args:
            data: The value of the input, or a list of values.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The value of the output, or a list of values, or what leaves the data out.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run.")

    def run_ops(
        self, ops: Sequence[Any], store: dict[str, Any], state: State, batched: str | None
    ) -> Any:
        """Run ops on a mapping.

        Args:
            ops: The ops.
            store: The values by key, which outputs are written to.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The values of this op's outputs as a list, or what leaves the data out.
        """
        filtered = forward_numpyop(ops, store, state, batched=batched)
        return [store[key] for key in self.outputs] if filtered is None else filtered

    def set_rua_level(self, magnitude_coef: float) -> None:
        """Set how strongly the ops vary their data; FastEstimator's RUA asks for it.

        Args:
            magnitude_coef: The strength, from 0 to 1.

        Raises:
            AttributeError: If one of the ops has no such setting.
        """
        for op in self.ops:
            if not callable(getattr(op, "set_rua_level", None)):
                raise AttributeError(
                    f"RUA sets the strength of its ops, but {type(op).__name__}, inside of "
                    f"{type(self).__name__}, has no set_rua_level."
                )
            op.set_rua_level(magnitude_coef=magnitude_coef)
