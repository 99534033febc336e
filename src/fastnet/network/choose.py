"""The network for the models at hand."""

from __future__ import annotations

import sys
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from fastnet.backend.facts import name_of
from fastnet.backend.framework import framework_of
from fastnet.frameworks import framework_named
from fastnet.network.base import BaseNetwork
from fastnet.network.compiling import CompileOptions
from fastnet.network.models import collect_models

if TYPE_CHECKING:
    from fastnet.network.tf.open_axes import Axes

__all__ = ["Network", "framework_for"]


def Network(
    ops: Any,
    pops: Any = None,
    slicers: Any = None,
    open_axes: Axes | None = None,
    device: Any = None,
    keep_on_device: bool = True,
    returns: Literal["cpu", "device"] | None = "cpu",
    compile: bool | CompileOptions = False,
) -> BaseNetwork:
    """Make the network that fits the models of some ops.

    A network is opened for a mode and an epoch, ``with network(mode="train", epoch=1):``, and then
    runs batches, one a step: ``result = network.run_step({"x": x, "label": label})``. The result
    has the batch's values by key, and over them what ops have written. `transform` opens it for a
    batch, or a loader of them; `explain` tells what a step would run; `fastnet.steps` goes through
    an epoch. What its methods take, `help(fastnet.network.BaseNetwork)` tells.

    Args:
        ops: The ops, in order; None, and schedulers of ops, may be among them.
        pops: Postprocessing ops, which run on batches of numpy arrays after the rest.
        slicers: What cuts a batch into minibatches and joins their results.
        open_axes: The axes of which one graph may serve any length; None for the first, which is
            the batch's (TensorFlow only, see `TFNetwork`).
        device: Where ops run (torch only, see `TorchNetwork`, as for what follows).
        keep_on_device: Whether models stay on the device between openings.
        returns: Where a step's outputs are returned.
        compile: Whether steps run as one compiled program each, or the options to do that by.

    Returns:
        A `TorchNetwork`, a `TFNetwork` or that of another framework. Ops that hold no model run in
        torch, unless only TensorFlow has been imported.

    Raises:
        AssertionError: If models of two frameworks, or two models of one name (case aside), are
            among the ops.
        ValueError: If a model is of no known framework, axes are given for torch, which makes no
            graphs, or there is no such device.
        TypeError: If `open_axes` holds something else than axes, or what is for torch alone is
            given for another framework.

    >>> import torch, fastnet
    >>> from fastnet.op.tensorop.model import ModelOp
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn=None)
    >>> network = Network([ModelOp(model, "x", "y")])
    >>> type(network).__name__
    'TorchNetwork'
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": torch.ones(3, 2)})["y"].shape
    torch.Size([3, 1])
    """
    # any other argument is an option that only some frameworks' networks take
    options = {key: value for key, value in locals().items() if key not in _OF_ALL}
    defaults = signature(Network).parameters
    given = {key: value for key, value in options.items() if value != defaults[key].default}
    name = framework_for(ops)
    make = framework_named(name).load("network")
    unknown = [key for key in given if key not in signature(make).parameters]
    if "open_axes" in unknown:
        raise ValueError(
            f"open_axes is for the graphs of a TensorFlow network, but these ops run in {name}, "
            "which makes none. Leave it out."
        )
    if unknown:
        raise TypeError(
            f"Network got {unknown}, which are for torch, but these ops run in {name}. Leave them "
            "out."
        )
    made: BaseNetwork = make(ops, pops, slicers, **given)
    return made


_OF_ALL = ("ops", "pops", "slicers")


def framework_for(ops: Any) -> str:
    """Find the framework that some ops need.

    Args:
        ops: The ops; None, and schedulers of ops, may be among them.

    Returns:
        The framework's name. Ops that hold no model need torch, unless only TensorFlow has been
        imported.

    Raises:
        AssertionError: If models of two frameworks are among the ops.
        ValueError: If a model is of no known framework.
    """
    models = collect_models(ops)
    frameworks: dict[str | None, list[str]] = {}
    for model in models:
        frameworks.setdefault(framework_of(model), []).append(name_of(model))
    if None in frameworks:
        raise ValueError(
            f"The models {frameworks[None]} are of no known framework. Build models of torch or "
            "Keras with fastnet.build."
        )
    if len(frameworks) > 1:
        raise AssertionError(
            f"The ops hold models of several frameworks: {frameworks}. Make a network for each."
        )
    only_tf = "tensorflow" in sys.modules and "torch" not in sys.modules
    return next(filter(None, frameworks), "tf" if only_tf else "torch")
