"""Ops on tensors: what a network runs on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.backend.dispatch import BY_VALUE, get_backend
from fastnet.backend.framework import framework_of
from fastnet.op.checks import require_arguments, require_function
from fastnet.op.copies import default_deepcopy
from fastnet.op.op import Op
from fastnet.op.tensorop.of_framework import bind, names_of
from fastnet.types import Model, State, Tensor
from fastnet.util.lazy import import_module

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self


class TensorOp(Op):
    """An op that takes tensors and gives tensors; by itself it hands them through.

    Derive from it and override `forward`; override `build` where the op does different things in
    different frameworks.

    Args:
        inputs: Key(s) to read. A string gives `forward` the value itself, a list gives it a list.
        outputs: Key(s) to write. With a string `forward` returns the value itself, with a list it
            returns a list.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
    """

    calls_user_code: bool = False
    """Whether `forward` of this very class calls functions that it was given. In a TensorFlow graph
    these, like the `forward` of a program's own classes, may have conditions and loops over
    tensors."""

    backend: Any = BY_VALUE
    """The package with the functions of the framework that the op was built for."""
    _framework: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # functions are found again where the op is loaded; those of some frameworks have no name
        own = {"backend", *names_of(type(self))}
        return {name: value for name, value in super().__getstate__().items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._framework is not None:
            vars(self)["backend"] = get_backend(self._framework)
            bind(self, self._framework)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        for model in self.get_fe_models():
            if framework_of(model) == "tf":
                # Keras copies a model without what is known of it
                import_module("fastnet.backend.tf.copying").copy_model(model, memo)
        return default_deepcopy(self, memo)

    def forward(self, data: Any, state: State) -> Any:
        """Do the op's work.

        Args:
            data: The value under `inputs`, or a list of values.
            state: The step's context.

        Returns:
            What to write under `outputs`: one value, or a list of values.
        """
        return data

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Get ready for a framework; a network calls this once, when it is made.

        What the op's class has as `OfFramework` becomes the framework's own.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).

        Raises:
            MissingPart: If the framework lacks something that the op needs.
        """
        bind(self, framework)
        # Written to __dict__, because an assignment would count as a changed setting.
        vars(self).update(_framework=framework, backend=get_backend(framework))

    def get_fe_models(self) -> set[Model]:
        """Return the models that the op holds."""
        return set()

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the op minimises."""
        return set()

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Read, or set, whether the op keeps the graph that it takes gradients of.

        Args:
            retain: The new setting, or None to leave it.

        Returns:
            The setting, or None for an op that takes no gradients.
        """
        return None


class LambdaOp(TensorOp):
    """Runs a function on its inputs.

    Args:
        fn: Called with one argument for each input; returns the output, or a list of outputs.
        inputs: Key(s) to read.
        outputs: Key(s) to write.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        TypeError: If `fn` cannot be called.
        ValueError: In a network, if it does not take as many arguments as there are inputs.
    """

    calls_user_code = True
    resolved_from = ("fn",)

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: str | Iterable[str] | None = None,
        outputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        require_function(self, "fn", fn)
        self.fn = fn
        self.in_list = True

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op.

        Args:
            changed: The names of the settings that changed.

        Raises:
            TypeError: As for `__init__`.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        require_function(self, "fn", self.fn)

    def check_keys(self) -> None:
        """Refuse a function that takes other arguments, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if type(self).forward is LambdaOp.forward:
            require_arguments(self, "fn", self.fn, self.inputs)

    def forward(self, data: list[Tensor], state: State) -> Any:
        """Call the function.

        Args:
            data: A list of the input values.
            state: The step's context, not used.

        Returns:
            What the function returns.
        """
        return self.fn(*data)


class Delete(TensorOp):
    """Drops values: no later op can read them, and the network does not return them.

    What the batch itself has under a key is not the network's to drop: it comes back with the rest
    of the batch.

    Args:
        keys: The key(s) to drop.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: In a network, if there is no key.
    """

    deletes_inputs = True

    def __init__(
        self,
        keys: str | Sequence[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=keys, mode=mode, ds_id=ds_id)

    def check_keys(self) -> None:
        """Refuse no key, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if not self.inputs:
            raise ValueError("Delete has nothing to drop: give it a key.")

    def forward(self, data: Any, state: State) -> None:
        """Do nothing; the network drops the keys.

        Args:
            data: The values, not used.
            state: The step's context, not used.
        """
