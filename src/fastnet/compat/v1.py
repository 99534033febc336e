"""Networks with the API that FastEstimator had from 1.0 to 1.5.

An epoch is loaded and unloaded instead of entered and left, and a step returns the batch and the
predictions apart. All else is as in `fastnet.network`.

>>> import torch
>>> from fastnet.op.tensorop import LambdaOp
>>> network = Network([LambdaOp(fn=lambda x: 2 * x, inputs="x", outputs="y")])
>>> network.load_epoch(mode="infer", epoch=1)
>>> batch, prediction = network.run_step({"x": torch.tensor([1.0, 2.0])})
>>> network.unload_epoch()
>>> batch, prediction
({'x': tensor([1., 2.])}, {'y': tensor([2., 4.])})
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from fastnet._resolve import Resolution
from fastnet.network.base import BaseNetwork
from fastnet.network.build import build
from fastnet.network.choose import framework_for
from fastnet.types import Model, State

if TYPE_CHECKING:
    TFNetwork: type[EpochNetwork]
    TorchNetwork: type[EpochNetwork]

__all__ = ["EpochNetwork", "Network", "TFNetwork", "TorchNetwork", "build"]


class EpochNetwork(BaseNetwork):
    """A network whose epochs are loaded; `TorchNetwork` and `TFNetwork` derive from it.

    Attributes:
        effective_inputs: For each mode that was loaded, the keys that it needs from its batch.
        effective_outputs: For each mode that was loaded, the keys that it returns.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.effective_inputs: dict[str, set[str]] = {}
        self.effective_outputs: dict[str, set[str]] = {}
        self._loaded = False

    def load_epoch(
        self,
        mode: str,
        epoch: int,
        ds_id: str | Collection[str] | None = "",
        output_keys: Collection[str] | bool | None = None,
        warmup: bool = False,
        eager: bool = False,
    ) -> None:
        """Get ready to run an epoch.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset. In the oldest form of this call it is left out, and
                `output_keys` and `warmup` stand in the third and fourth place.
            output_keys: The keys wanted back. None or empty for all that ops write.
            warmup: Whether this is a trial run that updates no weights.
            eager: Whether to run op by op even where a graph could be used (TensorFlow only).

        Raises:
            ValueError: As opening a network does.
        """
        wanted: Any = output_keys
        if not isinstance(ds_id, str):
            ds_id, wanted, warmup = "", ds_id, bool(output_keys) or warmup
        elif isinstance(wanted, bool):
            wanted, warmup = None, wanted
        self.unload_epoch()
        self(mode, epoch, ds_id, wanted, warmup, eager)
        self.effective_inputs[mode] = self.ctx_inputs
        self.effective_outputs[mode] = self.ctx_outputs
        self.__enter__()
        self._loaded = True

    def unload_epoch(self) -> None:
        """Give the epoch back; one that is not loaded is none to give back."""
        if self._loaded:
            self._loaded = False
            self.__exit__()

    def run_step(self, batch: Mapping[str, Any]) -> Any:
        """Run one batch through the ops in force, and through postprocessing.

        Args:
            batch: The values by key. It is not changed.

        Returns:
            The batch, and a dict of the outputs.

        Raises:
            ValueError: If no epoch is loaded.
            KeyError: If a key that is needed is not in the batch.
            Exception: Whatever an op raises, with a note that names the op.
        """
        plan = self._plan
        if plan is not None:
            return batch, plan.predict(batch, self._state)
        result = super().run_step(batch)
        return batch, {key: result[key] for key in self.ctx_outputs if key in result}

    def _do_transform(self, batch: dict[str, Any]) -> dict[str, Any]:
        read, prediction = self.run_step(batch)
        return {**read, **prediction}

    def get_effective_input_keys(self, mode: str, epoch: int, ds_id: str = "") -> set[str]:
        """List the keys that an epoch needs from its batch.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.

        Returns:
            The keys.
        """
        return self._resolution(mode, epoch, ds_id).inputs.names()

    def get_all_output_keys(self, mode: str, epoch: int, ds_id: str = "") -> set[str]:
        """List the keys that ops and postprocessing write in an epoch.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.

        Returns:
            The keys.
        """
        return self._resolution(mode, epoch, ds_id).outputs.names()

    def _resolution(self, mode: str, epoch: int, ds_id: str) -> Resolution:
        return self._layouts.find(mode, epoch, ds_id, frozenset()).plan.resolution

    @property
    def epoch_ops(self) -> list[Any]:
        """The ops of the loaded epoch."""
        return self.ctx_ops

    @property
    def epoch_postprocessing(self) -> list[Any]:
        """The postprocessing ops of the loaded epoch."""
        return self.ctx_postprocessing

    @property
    def epoch_models(self) -> set[Model]:
        """The models of the loaded epoch."""
        return self.ctx_models

    @property
    def epoch_state(self) -> State:
        """The context that ops are given in the loaded epoch."""
        return self.ctx_state


def Network(ops: Any, pops: Any = None, slicers: Any = None) -> EpochNetwork:
    """Make the network that fits the models of some ops.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        pops: Postprocessing ops, which run on batches of numpy arrays after the rest.
        slicers: What cuts a batch into minibatches and joins their results.

    Returns:
        A `TorchNetwork` or a `TFNetwork` of this module.

    Raises:
        AssertionError: If models of two frameworks, or two models of one name (case aside), are
            among the ops.
        ValueError: If a model is of no known framework.
    """
    make = __getattr__("TFNetwork" if framework_for(ops) == "tf" else "TorchNetwork")
    network: EpochNetwork = make(ops, pops, slicers)
    return network


def __getattr__(name: str) -> Any:
    """Make a framework's class when it is first asked for, so that no other one is imported."""
    main: type[BaseNetwork]
    if name == "TorchNetwork":
        from fastnet.network.torch import TorchNetwork as main
    elif name == "TFNetwork":
        from fastnet.network.tf import TFNetwork as main
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in globals():
        doc = (main.__doc__ or "").partition(">>>")[0].rstrip()
        globals()[name] = type(name, (EpochNetwork, main), {"__doc__": doc, "__module__": __name__})
    return globals()[name]
