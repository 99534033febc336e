"""The base class of ops that run after each update of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastnet.backend.model_metadata import name_of, require_built
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Forward, Model, State


class FollowsUpdates(HoldsModel):
    """An op that runs after each update of a model, wherever it is in a network's list of ops.

    It follows the UpdateOps in the network's list of ops. Entering a network that updates the model
    by an UpdateOp inside of another op raises a ValueError.

    It does not run in steps without an update: while gradients are merged, in a warmup, and where
    gradients have overflowed. Derive from it and define `follow`, and `advance` for Python state
    that each update changes: a compiled step traces `follow` once, and then calls `advance`.
    """

    def __init__(
        self, model: Model, mode: str | Iterable[str] | None, ds_id: str | Iterable[str] | None
    ) -> None:
        super().__init__(mode=mode, ds_id=ds_id)
        require_built(type(self).__name__, model)
        self.model = self._initial_model = model

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changed settings; a different model is an error. See `Op.resolve_settings`."""
        self._set_io(self.inputs, self.outputs, self.mode, self.ds_id)
        if self.model is not self._initial_model:
            name = type(self).__name__
            raise ValueError(
                f"{name} was made for model '{name_of(self._initial_model)}', and cannot follow "
                f"'{name_of(self.model)}'. Make another {name} for it."
            )

    def _check_state(self, state: Any, key: str, kind: type, **required: Any) -> None:
        """Raise a ValueError unless a state has a value of a kind, and is of this op's model."""
        title, name = type(self).__name__, name_of(self.model)
        expected = {"model_name": name, **required}
        if not isinstance(state, dict) or not isinstance(state.get(key), kind):
            problem = f"is not that of an {title}: it has no {key!r}"
        else:
            differing = [entry for entry in expected if state.get(entry) != expected[entry]]
            if not differing:
                return
            entry = differing[0]
            problem = (
                f"has the {entry} {state.get(entry)!r}, where that of the {title} of '{name}' is "
                f"{expected[entry]!r}"
            )
        raise ValueError(
            f"The state to load {problem}. Load it into the {title} of the model that it was saved "
            "from, made with the same arguments."
        )

    def follow(self, stepped: Any = True) -> None:
        """Run after an update; `stepped` is whether it took place, a tensor in TensorFlow."""
        raise NotImplementedError(f"{type(self).__name__} must define follow.")

    def advance(self) -> None:
        """Update Python state after an optimizer step, such as a counter.

        `follow` calls it in eager steps, the runtime after a compiled one.
        """

    @property
    def is_deferrable(self) -> bool:
        """Whether a run of deferred updates at the end of the list may contain this op: True."""
        return True

    def exit_call(self) -> Callable[[], None] | None:
        """Return the function to call at the end of a training context, or None."""
        return None

    @property
    def affects_next_update(self) -> bool:
        """Whether the next update in a step depends on what `advance` does after this one."""
        return False

    def forward(self, data: Any, state: State) -> None:
        """Do nothing: `follow` runs after the update."""

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return `forward`, which does not depend on the settings of a network."""
        return self.forward
