"""Copying and pickling of networks: `copy.copy`, `copy.deepcopy`, `pickle` and `torch.save`."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastnet.backend.model_metadata import note_new_models
from fastnet.network.update_warnings import note_updates
from fastnet.op.op import with_inner_ops
from fastnet.schedule import get_current_items
from fastnet.types import Model, is_op, is_slicer

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastnet.network.session import Session


class Copyable:
    """Base class of networks: copies share or copy ops and models, but no locks and plans."""

    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    _session: Session | None

    def _init_state(self) -> None:
        """Set the attributes that copies do not share."""

    def _take_snapshot(self) -> None:
        """Take the snapshot of the ops that later changes are compared with."""

    def _update_device(self) -> None:
        """Move to a device of this machine, after unpickling on another machine."""

    def _watch_tensors(self) -> None:
        """Note the tensors that checkpoints do not contain, to see later whether they changed."""

    def _check_picklable(self, op: Any) -> None:
        """Raise if pickling an op would separate it from the models of the network."""

    def _copy_models(self, memo: dict[int, Any]) -> None:
        """Copy the models that `copy.deepcopy` does not copy correctly by itself."""

    def __copy__(self) -> Self:
        """Return a second network of the same ops, with the same lists of them."""
        copied = object.__new__(type(self))
        _restore(copied, _state(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the network with copies of its ops, models and optimizers."""
        _check_copyable(self)
        copied = memo[id(self)] = object.__new__(type(self))
        self._copy_models(memo)
        _restore(copied, copy.deepcopy(_state(self), memo))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        _check_copyable(self)
        for op in filter(is_op, _all_items(self)):
            self._check_picklable(op)
        return copyreg.__newobj__, (type(self),), _state(self), None, None, _restore  # type: ignore[attr-defined]


def _check_copyable(network: Copyable) -> None:
    """Check that a network is not open, and holds no op that FastEstimator pickles in part."""
    name = type(network).__name__
    if network._session is not None:
        raise ValueError(f"This {name} is open, so it cannot be copied or pickled. Leave it first.")
    for item in _all_items(network):
        setter = getattr(type(item), "__setstate__", None)
        if getattr(setter, "__module__", "").partition(".")[0] == "fastestimator":
            raise TypeError(
                f"This {name} cannot be copied or pickled, because FastEstimator saves only a part "
                f"of its {type(item).__name__}. Use fastnet's."
            )


def _state(network: Copyable) -> dict[str, Any]:
    """Return the attributes that copies of a network have, too."""
    fresh = object.__new__(type(network))
    fresh._init_state()
    not_copied = {*vars(fresh), "_plan_cache"}
    return {name: value for name, value in vars(network).items() if name not in not_copied}


def _restore(network: Copyable, state: dict[str, Any]) -> None:
    vars(network).update(state)
    network._init_state()
    # An op that refers to its network may be restored after it; then the first entry does the rest.
    if all(
        is_op(item) or is_slicer(item) or getattr(item, "__dict__", True)
        for item in _all_items(network)
    ):
        note_new_models(network.models)
        note_updates(network.ops)
        network._update_device()
        network._watch_tensors()
        network._take_snapshot()


def _all_items(network: Copyable) -> Iterator[Any]:
    """Iterate over the ops, slicers and schedulers of a network, and then over their contents."""
    items = [*network.ops, *network.postprocessing, *network.slicers]
    return chain(items, with_inner_ops(get_current_items(items)))
