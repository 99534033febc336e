"""FastEstimator's networks, implemented with fastnet's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fastnet.network
from fastnet.integrations.fastestimator.stand_ins import original_class, stand_in
from fastnet.network.factory import framework_for
from fastnet.network.validation import collect_models

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["Network", "get_compile", "network_class", "set_compile"]

_compile: bool | CompileOptions = False


def set_compile(compile: bool | CompileOptions) -> None:
    """Set the `compile` argument of networks created from now on."""
    global _compile
    _compile = compile


def get_compile() -> bool | CompileOptions:
    """Return the `compile` argument of a new network."""
    return _compile


def network_class(name: str) -> Any:
    """Return the class that replaces a network class of FastEstimator.

    Args:
        name: "BaseNetwork", "TorchNetwork" or "TFNetwork".
    """
    members = {**_MEMBERS, **_FRAMEWORK_MEMBERS.get(name, {})}
    return stand_in(getattr(fastnet.network, name), original_class("network", name), members)


def Network(ops: Any, pops: Any = None, slicers: Any = None) -> fastnet.network.BaseNetwork:
    """Create the network that fits the models of some ops.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        pops: Postprocessing ops, which run on batches of numpy arrays after the other ops.
        slicers: Slicers, which slice a batch into minibatches and unslice their results.

    Returns:
        A `TorchNetwork` or a `TFNetwork`. Ops without models run in TensorFlow, as in
        FastEstimator.

    Raises:
        AssertionError: If the ops hold models of two frameworks, or models of equal names.
        ValueError: If the framework of a model is unknown.
    """
    framework = framework_for(ops) if collect_models(ops) else "tf"
    make = network_class("TFNetwork" if framework == "tf" else "TorchNetwork")
    network: fastnet.network.BaseNetwork = make(ops, pops, slicers)
    return network


# The parameters of `__init__` are FastEstimator's, because its reports list all parameters.
def _init_torch(self: Any, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
    fastnet.network.TorchNetwork.__init__(self, ops, postprocessing, slicers, compile=get_compile())


def _init_tf(self: Any, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
    fastnet.network.TFNetwork.__init__(self, ops, postprocessing, slicers, compile=get_compile())


# An Estimator with epochs=0 tests in epoch 0.
_MEMBERS = {"_first_epoch": 0}
_FRAMEWORK_MEMBERS: dict[str, dict[str, Any]] = {
    # FastEstimator's traces expect models on the CPU between epochs.
    "TorchNetwork": {"__init__": _init_torch, "_keeps_on_device": False},
    "TFNetwork": {"__init__": _init_tf},
}
