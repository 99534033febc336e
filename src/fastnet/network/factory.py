"""`Network`: creates the network that fits some ops."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from fastnet.backend.dispatch import framework_of, get_framework
from fastnet.backend.model_metadata import name_of
from fastnet.network.compile_options import CompileOptions
from fastnet.network.dynamic_axes import Dynamic, refuse_open_axes
from fastnet.network.validation import collect_models
from fastnet.types import NumpyOps, Ops, Slicers

if TYPE_CHECKING:
    from fastnet.network.tf import TFNetwork
    from fastnet.network.torch import TorchNetwork


def Network(
    ops: Ops,
    pops: NumpyOps = None,
    slicers: Slicers = None,
    dynamic: Dynamic = None,
    device: Any = None,
    keep_on_device: bool = True,
    returns: Literal["cpu", "device"] | None = "cpu",
    compile: bool | CompileOptions = False,
    open_axes: None = None,
) -> TFNetwork | TorchNetwork:
    """Create the network that fits the models of some ops.

    A network is entered for a mode and an epoch, ``with network(mode="train", epoch=1):``, and then
    runs one batch per step: ``result = network.run_step({"x": x, "label": label})``. The result
    holds the values of the batch and the outputs of the ops, by key. See
    `help(fastnet.BaseNetwork)` for all methods.

    Args:
        ops: The ops, in order; None and schedulers of ops are allowed.
        pops: Postprocessing ops, which run on batches of numpy arrays after the other ops.
        slicers: Slicers, which slice a batch into minibatches and unslice their results.
        dynamic: Which axes of the tensors of a batch may have any length in one compiled program
            of torch, or in one trace of TensorFlow, instead of one for each length. None for axis
            0, the batch size, once a second length comes; True for axis 0 in the first program; and
            False for none. A dict gives the axes by key, such as ``{"tokens": (0, 1)}``: these are
            dynamic in the first program, and other keys are as with None. An axis below 0 counts
            from the last.
        device: Where ops run (see `TorchNetwork`).
        keep_on_device: Whether models stay on the device while the network is not open (see
            `TorchNetwork`).
        returns: Where a step's outputs are returned (see `TorchNetwork`).
        compile: Whether to compile each step to one program, or the options for it.
        open_axes: Replaced by `dynamic`.

    Returns:
        A `TorchNetwork` or a `TFNetwork`. Ops without models run in torch, unless only TensorFlow
        is imported.

    Raises:
        AssertionError: If the ops hold models of two frameworks, or models of equal names.
        ValueError: If the framework of a model is unknown.
        TypeError: If the network of the framework does not take an option, or it has the wrong
            type.

    >>> import torch
    >>> from fastnet.network import build
    >>> from fastnet.op.tensorop.model import ModelOp
    >>> model = build(lambda: torch.nn.Linear(2, 1), optimizer_fn=None)
    >>> network = Network([ModelOp(model, "x", "y")])
    >>> type(network).__name__
    'TorchNetwork'
    >>> with network(mode="infer", epoch=1):
    ...     network.run_step({"x": torch.ones(3, 2)})["y"].shape
    torch.Size([3, 1])
    """
    refuse_open_axes(open_axes)
    values_and_defaults = {
        "device": (device, None),
        "keep_on_device": (keep_on_device, True),
        "returns": (returns, "cpu"),
        "compile": (compile, False),
    }
    # A TFNetwork has no arguments for some of these, so pass only those that are not defaults.
    options: dict[str, Any] = {
        name: value for name, (value, default) in values_and_defaults.items() if value != default
    }
    framework = framework_for(ops)
    get_framework(framework)  # If it is not installed, the error names what to install.
    if framework == "tf":
        from fastnet.network.tf import TFNetwork

        return TFNetwork(ops, pops, slicers, dynamic=dynamic, **options)
    from fastnet.network.torch import TorchNetwork

    return TorchNetwork(ops, pops, slicers, dynamic=dynamic, **options)


def framework_for(ops: Any) -> str:
    """Return the framework of the models in ops; without models "torch", unless only tf is used."""
    frameworks: dict[str | None, list[str]] = {}
    for model in collect_models(ops):
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
