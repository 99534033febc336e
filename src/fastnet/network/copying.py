"""Copying and pickling of networks: `copy.copy`, `copy.deepcopy`, `pickle` and `torch.save`."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastnet.backend.framework import framework_of
from fastnet.errors import add_note
from fastnet.op.op import Op
from fastnet.schedule import get_current_items
from fastnet.types import is_op, is_slicer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Value"]


class Value:
    """Base class of networks: copies their ops and models, and creates locks and plans anew."""

    def _begin(self) -> None:
        """Set the attributes that copies do not share."""
        raise NotImplementedError

    def _move_in(self) -> None:
        """Move to a device of this machine, after unpickling on another one."""

    def _require_apart(self, op: Any) -> None:
        """Raise if pickling an op would separate it from the models of the network."""

    def _copy_models(self, memo: dict[int, Any]) -> None:
        """Copy the models that `copy.deepcopy` does not copy correctly by itself."""

    def __copy__(self) -> Self:
        """Return a second network of the same ops, with the same lists of them."""
        made = object.__new__(type(self))
        _restore(made, _state(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the network with copies of its ops, models and optimizers."""
        _require_left(self)
        state = _state(self)
        _refuse_fastestimator(self)
        made = memo[id(self)] = object.__new__(type(self))
        self._copy_models(memo)
        try:
            copied = copy.deepcopy(state, memo)
        except Exception as error:
            _add_path(error, state, lambda part: copy.deepcopy(part, {id(self): made}))
            raise
        _restore(made, copied)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what `pickle` saves, after a trial whose error names the attribute at fault."""
        _require_left(self)
        state = _state(self)
        # Subclasses of Pickler, such as cloudpickle's, may accept more than the trial does.
        caller = sys._getframe(1).f_locals.get("self")
        if not isinstance(caller, (pickle.Pickler, pickle._Pickler)):
            _refuse_fastestimator(self)
            for op in filter(is_op, _all_items(self)):
                self._require_apart(op)
            try:
                _try_pickle(state)
            except Exception as error:
                _add_path(error, state, _try_pickle)
                raise
        # Passing the state setter makes this independent of a `__setstate__` of a subclass.
        return _new, (type(self),), state, None, None, _restore


def _new(cls: type[Value]) -> Value:
    return object.__new__(cls)


def _require_left(network: Any) -> None:
    if network._context is not None:
        raise ValueError(
            f"This {type(network).__name__} is open, and its models cannot be copied or pickled "
            "meanwhile. Leave it first."
        )


def _state(network: Any) -> dict[str, Any]:
    """Return the attributes that copies of a network have, too."""
    fresh = object.__new__(type(network))
    fresh._begin()
    own = {*vars(fresh), "_plans"}
    return {name: value for name, value in vars(network).items() if name not in own}


def _refuse_fastestimator(network: Any) -> None:
    for item in _all_items(network):
        setter = getattr(type(item), "__setstate__", None)
        if getattr(setter, "__module__", "").startswith("fastestimator."):
            raise TypeError(
                f"This {type(network).__name__} cannot be copied or pickled, because FastEstimator "
                f"saves only a part of its {type(item).__name__}. Use fastnet's."
            )


def _restore(network: Any, state: dict[str, Any]) -> None:
    vars(network).update(state)
    network._begin()
    # An op that refers to its network may be restored after it; then the first entry does the rest.
    if all(is_op(item) or is_slicer(item) or vars(item) for item in _all_items(network)):
        network._move_in()
        network._plans  # noqa: B018  (from here on, changes of attributes of ops are noticed)


def _all_items(network: Any) -> Iterator[Any]:
    """Yield the ops, slicers and schedulers of a network, and then those that they contain."""
    items = [*network.ops, *network.postprocessing, *network.slicers]
    yield from items
    items = get_current_items(items)
    for item in items:
        yield item
        items += item.inner_ops() if isinstance(item, Op) else ()


def _add_path(error: Exception, state: dict[str, Any], attempt: Callable[[Any], Any]) -> None:
    """Add a note with the path to the attribute at which an attempt to copy fails."""
    add_note(
        error,
        f"Raised because of network{_failing_path(state, attempt, set())}. Networks cannot be "
        "copied with open files or locks, nor pickled with lambdas or local functions.",
    )


def _failing_path(value: Any, attempt: Callable[[Any], Any], seen: set[int]) -> str:
    """Return the path to the innermost failing value, such as `.ops[1] (Fuse).ops[0] (Scale).f`."""
    is_sequence = isinstance(value, (list, tuple))
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    seen.add(id(value))
    for key, one in enumerate(value) if is_sequence else inside.items():
        if id(one) in seen or isinstance(one, ModuleType):
            continue
        try:
            attempt(one)
        except Exception:
            name = f"[{key!r}]" if is_sequence or not isinstance(key, str) else f".{key}"
            name += f" ({type(one).__name__})" if is_op(one) else ""
            return name + _failing_path(one, attempt, seen)
    return ""


def _try_pickle(item: Any) -> None:
    _Trial(io.BytesIO()).dump(item)


class _Trial(ForkingPickler):
    """Pickles all but tensors and arrays, as they are large, and Keras models and networks."""

    def persistent_id(self, obj: Any) -> Any:
        is_tensor = hasattr(obj, "dtype") and hasattr(obj, "shape")
        skips = is_tensor or isinstance(obj, Value) or framework_of(obj) == "tf"
        return "skipped" if skips else None
