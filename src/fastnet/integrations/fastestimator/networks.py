"""FastEstimator's network module, made of fastnet's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fastnet.network
from fastnet.integrations.fastestimator.patches import get_compile, patched
from fastnet.integrations.fastestimator.stand_ins import original_class, stand_in
from fastnet.network.build import framework_for
from fastnet.network.validation import collect_models as list_models
from fastnet.util import get_device

__all__ = ["Network", "collect_models", "network_class"]


def network_class(name: str) -> Any:
    """Return a class of networks.

    Args:
        name: "BaseNetwork", "TorchNetwork" or "TFNetwork".

    Returns:
        The stand-in.
    """
    members = {**_MEMBERS, **_MORE.get(name, {})}
    return stand_in(getattr(fastnet.network, name), original_class("network", name), members)


def Network(ops: Any, pops: Any = None, slicers: Any = None) -> fastnet.network.BaseNetwork:
    """Make the network that fits the models of some ops.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        pops: Postprocessing ops, which run on batches of numpy arrays after the rest.
        slicers: What cuts a batch into minibatches and joins their results.

    Returns:
        A `TorchNetwork` or a `TFNetwork`. Ops that hold no model run in TensorFlow, as they do in
        FastEstimator.

    Raises:
        AssertionError: If models of two frameworks, or two models of one name (case aside), are
            among the ops.
        ValueError: If a model is of no known framework.
    """
    framework = framework_for(ops) if list_models(ops) else "tf"
    name = "TFNetwork" if framework == "tf" else "TorchNetwork"
    make = patched(name) or network_class(name)
    network: fastnet.network.BaseNetwork = make(ops, pops, slicers)
    return network


def collect_models(ops: Any) -> set[Any]:
    """Collect the models that ops hold.

    Args:
        ops: Ops, and schedulers of ops; None may be among them.

    Returns:
        The models.
    """
    return set(list_models(ops))


def _choose_device(network: Any) -> Any:
    return (patched("get_device") or get_device)()


def _init_torch(self: Any, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
    """Take FastEstimator's arguments and no others, since its reports list all that there are."""
    fastnet.network.TorchNetwork.__init__(self, ops, postprocessing, slicers, compile=get_compile())


def _init_tf(self: Any, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
    """Take FastEstimator's arguments and no others."""
    fastnet.network.TFNetwork.__init__(self, ops, postprocessing, slicers, compile=get_compile())


def _to_batch(network: Any, data: Any) -> Any:
    convert = patched("to_tensor")
    if convert is None or not isinstance(data, Mapping):
        return fastnet.network.BaseNetwork._to_batch(network, data)
    return convert(dict(data), target_type=network.target_type)


# An Estimator of no epochs tests in epoch 0.
_MEMBERS = {"_first_epoch": 0, "_to_batch": _to_batch}
_MORE: dict[str, dict[str, Any]] = {
    "TorchNetwork": {
        "__init__": _init_torch,
        "_choose_device": _choose_device,
        # its traces read and save models between epochs as on the CPU
        "_keeps_on_device": False,
    },
    "TFNetwork": {"__init__": _init_tf},
}
