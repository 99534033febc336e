"""Networks with the API that FastEstimator had from 1.0 to 1.5.

An epoch is loaded and unloaded instead of entered and left, and a step returns the batch and the
predictions separately. Everything else is as in `fastnet.network`.

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

import sys
from collections import ChainMap
from collections.abc import Collection, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from fastnet._resolve import Resolution
from fastnet.network import base
from fastnet.network.build import build
from fastnet.network.factory import framework_for
from fastnet.network.session import Session
from fastnet.network.validation import check_request
from fastnet.types import Mode, Model, RunStep, State

if TYPE_CHECKING:
    TFNetwork: type[BaseNetwork]
    TorchNetwork: type[BaseNetwork]

__all__ = ["BaseNetwork", "Network", "TFNetwork", "TorchNetwork", "build"]


class _OutputsSession(Session):
    """A session whose steps return the outputs alone, without the entries of the batch."""

    def _convert_result(self, run: RunStep) -> RunStep:
        if run == self.bound.step:
            return self.bound.run
        # Outputs of postprocessing are returned even if they are not among the desired keys.
        returned = set(self.plan.kernel.resolution.outputs.names())
        for op in self.plan.postprocessing:
            returned.update(op.outputs)

        def run_outputs(batch: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in run(batch).items() if key in returned}

        return run_outputs


class BaseNetwork(base.BaseNetwork):
    """A network whose epochs are loaded; `TorchNetwork` and `TFNetwork` derive from it.

    Attributes:
        effective_inputs: For each mode that was loaded, the keys that it needs from its batch.
        effective_outputs: For each mode that was loaded, the keys that it returns.
        epoch_ops: The ops of the epoch that was loaded last.
        epoch_postprocessing: Its postprocessing ops.
        epoch_models: Its models.
        epoch_state: The state that its ops were given.
    """

    _session_type: ClassVar[type[Session]] = _OutputsSession

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epoch_ops: list[Any] = []
        self.epoch_postprocessing: list[Any] = []
        self.epoch_models: set[Model] = set()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        session_type = super()._session_type
        cls._session_type = type("Session", (_OutputsSession, session_type), {})

    def _init_state(self) -> None:
        super()._init_state()
        self.effective_inputs: dict[str, set[str]] = {}
        self.effective_outputs: dict[str, set[str]] = {}
        self.epoch_state: State = {}
        self._loaded: Session | None = None
        # The error that the program was handling when it loaded the epoch.
        self._handled_error: BaseException | None = None

    def load_epoch(
        self,
        mode: Mode,
        epoch: int,
        ds_id: str | Collection[str] | None = "",
        output_keys: Collection[str] | bool | None = None,
        warmup: bool = False,
        eager: bool = False,
    ) -> None:
        """Prepare the network to run an epoch, and unload an epoch that is loaded.

        Args:
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset. The oldest form of this call has no `ds_id`: there
                `output_keys` and `warmup` are the third and the fourth argument.
            output_keys: The keys to return. None or empty for all that ops write.
            warmup: Whether this is a trial run that updates no weights.
            eager: Whether to run op by op even where a graph could be used (TensorFlow only).

        Raises:
            TypeError: As for calling a network.
            ValueError: As for calling and entering a network.
        """
        desired_keys: Any = output_keys
        dataset_id: Any = ds_id
        if isinstance(desired_keys, bool):
            # In the oldest form the fourth argument is `warmup`.
            desired_keys, warmup = None, desired_keys or warmup
        if dataset_id is None and desired_keys is None:
            dataset_id = ""
        elif dataset_id is not None and not isinstance(dataset_id, str):
            # In the oldest form the third argument has the keys.
            warmup = bool(desired_keys) or warmup
            dataset_id, desired_keys = "", dataset_id
        self.unload_epoch()
        self(mode, epoch, dataset_id, desired_keys, warmup, eager)
        # Assigned before the network is entered, so that `unload_epoch` leaves it also after an
        # interrupt between the two.
        self._loaded = self._configured.session
        self._handled_error = sys.exc_info()[1]
        try:
            self.__enter__()
        except BaseException:
            if self._session is not self._loaded:
                self._loaded = self._handled_error = None
            raise

    def unload_epoch(self) -> None:
        """Leave the network; does nothing if no epoch is loaded."""
        if self._session is not None and self._session is self._loaded:
            error = sys.exc_info()[1]
            # An error that the program was handling already is not an error of the epoch.
            self.__exit__(None, None if error is self._handled_error else error)
            self._loaded = self._handled_error = None

    def run_step(self, batch: Mapping[str, Any]) -> Any:
        """Run a batch through the active ops, and through postprocessing.

        Args:
            batch: The values by key. It is not changed.

        Returns:
            The batch, and a dict of the outputs, with those of postprocessing.

        Raises:
            ValueError: If no epoch is loaded.
            KeyError: If the batch lacks a key that ops need.
            Exception: Any error of an op, with a note that names the op.
        """
        session = self._session
        if session is None:
            raise self._not_open()
        return batch, session.run(batch)

    def transform(
        self,
        data: Any,
        mode: Mode,
        epoch: int = 1,
        ds_id: str | None = "",
        progress: bool = False,
        desired_output_keys: Collection[str] | None = None,
        device: Any = None,
    ) -> Any:
        """Run data through the network, in an epoch of its own; a loaded epoch is unloaded.

        Args:
            data: A batch, or batches, as for `fastnet.Network`.
            mode: "train", "eval", "test" or "infer".
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset, "" if it has none.
            progress: Whether to show a bar (with tqdm) where the number of batches is known.
            desired_output_keys: The keys to return. None or empty for all that ops write.
            device: The device to run on in this call, as for `fastnet.Network`.

        Returns:
            For a batch its result, else a list of results: each a `ChainMap` of the outputs and
            the batch.
        """
        self.unload_epoch()
        return super().transform(data, mode, epoch, ds_id, progress, desired_output_keys, device)

    def _start(self, session: Session) -> None:
        super()._start(session)
        mode = session.state["mode"]
        self.effective_inputs[mode] = self.ctx_inputs
        self.effective_outputs[mode] = self.ctx_outputs
        self.epoch_ops = self.ctx_ops
        self.epoch_postprocessing = self.ctx_postprocessing
        self.epoch_models = self.ctx_models
        self.epoch_state = self.ctx_state

    def _not_open(self) -> ValueError:
        return ValueError(
            f"run_step needs a loaded epoch. Call load_epoch(mode, epoch) of this "
            f"{type(self).__name__} before it, and unload_epoch() after the last step."
        )

    def _do_transform(self, batch: dict[str, Any]) -> Any:
        _, prediction = self.run_step(batch)
        self._floats_to_tensors(batch)
        return ChainMap(prediction, batch)

    def get_effective_input_keys(self, mode: str, epoch: int, ds_id: str = "") -> set[str]:
        """Return the keys that an epoch needs from its batch.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.

        Returns:
            The keys.
        """
        return self._resolution(mode, epoch, ds_id).inputs.names()

    def get_all_output_keys(self, mode: str, epoch: int, ds_id: str = "") -> set[str]:
        """Return the keys that ops and postprocessing write in an epoch.

        Args:
            mode: The mode.
            epoch: The epoch, counted from 1.
            ds_id: The id of the dataset.

        Returns:
            The keys.
        """
        return self._resolution(mode, epoch, ds_id).outputs.names()

    def _resolution(self, mode: str, epoch: int, ds_id: str) -> Resolution:
        epoch, _ = check_request(mode, epoch, ds_id, None, self._first_epoch)
        return self._plan_cache.find(mode, epoch, ds_id, None).kernel.resolution


def Network(ops: Any, pops: Any = None, slicers: Any = None) -> BaseNetwork:
    """Create the network that fits the models of some ops.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        pops: Postprocessing ops, which run on batches of numpy arrays after the other ops.
        slicers: Slicers, which slice a batch into minibatches and unslice their results.

    Returns:
        A `TorchNetwork` or a `TFNetwork` of this module.

    Raises:
        AssertionError: If the ops hold models of two frameworks, or models of equal names (case
            aside).
        ValueError: If the framework of a model is unknown.
    """
    make = __getattr__("TFNetwork" if framework_for(ops) == "tf" else "TorchNetwork")
    network: BaseNetwork = make(ops, pops, slicers)
    return network


def __getattr__(name: str) -> Any:
    """Make a framework's class when it is first used, so that no other framework is imported."""
    main_class: type[base.BaseNetwork]
    if name == "TorchNetwork":
        from fastnet.network.torch import TorchNetwork as main_class
    elif name == "TFNetwork":
        from fastnet.network.tf import TFNetwork as main_class
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in globals():
        doc = (main_class.__doc__ or "").partition(">>>")[0].rstrip()
        globals()[name] = type(
            name,
            (BaseNetwork, main_class),
            {
                "__doc__": doc,
                "__module__": __name__,
                "__signature__": signature(main_class),
            },
        )
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
