"""Ops on tensors, which a network runs on its device."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import backend_of, framework_of, get_backend
from fastnet.op.checks import require_arguments, require_function
from fastnet.op.copies import default_deepcopy
from fastnet.op.op import Op, PerInput
from fastnet.types import Forward, Keys, Model, Names, State, Tensor
from fastnet.util.lazy import import_module

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self


def _backend_with(function: str, value: object, title: str) -> ModuleType:
    """Return the package of a tensor's framework; raise a TypeError if it lacks the function."""
    package = backend_of(value)
    if not hasattr(package, function):
        raise TypeError(
            f"{title} runs on tensors of torch or TensorFlow, but got an array of type "
            f"{type(value).__name__}. Convert it to a tensor first."
        )
    return package


class _DispatchingBackend:
    """The backend of an op that was not built: the first argument decides which package runs."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            package = _backend_with(name, value, title=name)
            return getattr(package, name)(value, *args, **kwargs)

        return call


class TensorOp(Op):
    """An op on tensors; by itself it returns its input.

    Derive from it and override `forward`, which calls the functions of `fastnet.backend` as
    ``self.backend.reduce_mean(x, axes, keepdims)``: with all arguments by position, and axes as a
    tuple, or None for all. Override `build` where tensors are to be prepared in advance.

    Args:
        inputs: The key or keys to read. `forward` gets one value for a string, otherwise a list.
        outputs: The key or keys to write. `forward` returns one value for a string, otherwise a
            list.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all other modes. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all other datasets.
            None for every dataset.

    >>> import torch
    >>> class Center(TensorOp):
    ...     def forward(self, data, state):
    ...         return data - self.backend.reduce_mean(data, None, False)
    >>> Center("x", "y").forward(torch.tensor([1.0, 3.0]), {})
    tensor([-1.,  1.])
    """

    calls_user_code: bool = False
    """Whether `forward` calls functions of the user. In a TensorFlow graph these, like the
    `forward` of the user's own classes, may use Python conditions and loops over tensors."""

    defer: bool | None = None
    """Whether the op's updates wait until the end of the step; None for an op that has none."""
    merge_grad: int = 1
    """The number of steps whose gradients are averaged for an update."""

    backend: ModuleType | _DispatchingBackend = _DispatchingBackend()
    """The package with the functions of the framework that the op was built for. Until the op is
    built, the first argument of each call decides."""
    _framework: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("backend", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._framework is not None:
            vars(self)["backend"] = get_backend(self._framework)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        for model in self.get_fe_models():
            if framework_of(model) == "tf":
                # Keras does not copy what fastnet.build has stored about a model.
                import_module("fastnet.backend.tf.copying").copy_model(model, memo)
        return default_deepcopy(self, memo)

    def forward(self, data: Any, state: State) -> Any:
        """Compute the outputs.

        Args:
            data: The value of the input, or a list of values.
            state: The state of the step: "mode", "epoch", "warmup", "tape" and others.

        Returns:
            The value of the output, or a list of values.
        """
        return data

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the op for a framework. A network calls this when it is made.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).

        Raises:
            ValueError: If there is no such framework.
        """
        # Written to __dict__, because an assignment would count as a changed setting.
        vars(self).update(_framework=framework, backend=get_backend(framework))

    def _backend_of(self, tensor: Tensor, function: str) -> ModuleType | _DispatchingBackend:
        """Return the backend, which a tensor decides if the op was not built."""
        if self._framework is not None:
            return self.backend
        return _backend_with(function, tensor, type(self).__name__)

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return the function that a network calls instead of `forward`, if there is one.

        Args:
            defer: Whether updates wait until the end of the step.
            retain_graph: Whether a later op differentiates a graph, possibly the one that this op
                differentiates.

        Returns:
            The function of the data and the state, or None to call `forward`.
        """
        return None

    def describe_settings(self) -> list[str]:
        """Describe the op's settings, for `explain`."""
        return []

    def get_fe_models(self) -> set[Model]:
        """Return the models that the op holds."""
        return set()

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the op minimizes."""
        return set()

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the op retains the graph that it differentiates.

        Args:
            retain: The new value, or None to leave it.

        Returns:
            The value, or None for an op that takes no gradients.
        """
        return None

    @property
    def updates_models(self) -> bool:
        """Whether the op minimizes losses of its models."""
        return bool(self.get_fe_loss_keys())

    @property
    def is_deferrable(self) -> bool:
        """Whether a run of deferred updates at the end of the list may contain this op."""
        return self.defer is not None

    @property
    def needs_graph(self) -> bool:
        """Whether the op differentiates a graph, which earlier ops must retain."""
        return self.fe_retain_graph() is not None


class LambdaOp(TensorOp):
    """Apply a function to the inputs. See `TensorOp` for `mode` and `ds_id`.

    Args:
        fn: A function with one argument for each input. Returns the output, or a list of outputs.
        inputs: The key or keys to read.
        outputs: The key or keys to write.

    Raises:
        TypeError: If `fn` is not callable.
        ValueError: In a network, if `fn` does not take as many arguments as there are inputs.

    >>> LambdaOp(lambda x, y: x + y, ["x", "y"], "sum").forward([1, 2], {})
    3
    """

    calls_user_code = True
    resolved_from = ("fn",)

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Keys | None = None,
        outputs: Keys | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        require_function(self, "fn", fn)
        self.fn = fn
        self.in_list = True

    def check_keys(self) -> None:
        """Check that the function takes one argument for each input."""
        if type(self).forward is LambdaOp.forward:
            require_arguments(self, "fn", self.fn, self.inputs)

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Call the function."""
        return self.fn(*data)


class Delete(TensorOp):
    """Drop values, so that no later op reads them and the network does not return them.

    Values that the batch itself contains are returned with the rest of the batch. See `TensorOp`
    for `mode` and `ds_id`.

    Args:
        keys: The key or keys to drop.

    Raises:
        ValueError: In a network, if there is no key.

    >>> Delete(["x", "y"], mode="train")
    Delete(x, y ->, mode=train)
    """

    deletes_inputs = True
    n_inputs = "+"

    def __init__(self, keys: Keys, mode: Names = None, ds_id: Names = None) -> None:
        super().__init__(inputs=keys, mode=mode, ds_id=ds_id)

    def forward(self, data: Any, state: State) -> None:
        """Do nothing: the network drops the values."""


class PerTensor(PerInput, TensorOp):
    """An op that applies the same function to each input. Derive from it and define `apply`.

    Its `forward` takes and returns lists. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.

    Raises:
        ValueError: In a network, if there is no input, or the number of outputs differs.
    """
