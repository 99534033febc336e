"""What all losses share."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.op.tensorop.tensorop import TensorOp


class LossOp(TensorOp):
    """A loss: reads predictions and truth, writes a number. By itself it hands its input through.

    Args:
        inputs: Two keys: predictions, truth.
        outputs: The key to write the loss under.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        average_loss: Whether to write the mean over the batch, rather than a loss for each point.
    """

    def __init__(
        self,
        inputs: str | Iterable[str] | None = None,
        outputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
        average_loss: bool = True,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.average_loss = average_loss

    def require_pair(self) -> None:
        """Refuse anything but two inputs and one output, for losses that compare two values.

        Raises:
            ValueError: If there are more or fewer.
        """
        if len(self.inputs) != 2:
            raise ValueError(
                f"{type(self).__name__} reads two keys, the predictions and the truth, but its "
                f"inputs are {self.inputs}."
            )
        if len(self.outputs) != 1:
            raise ValueError(
                f"{type(self).__name__} writes one key, the loss, but its outputs are "
                f"{self.outputs}."
            )

    @property
    def true_key(self) -> str:
        """The key of the truth."""
        return self.inputs[self.true_key_idx]

    @property
    def pred_key(self) -> str:
        """The key of the predictions."""
        return self.inputs[self.pred_key_idx]

    @property
    def true_key_idx(self) -> int:
        """The place of the truth among the inputs."""
        return 1

    @property
    def pred_key_idx(self) -> int:
        """The place of the predictions among the inputs."""
        return 0
