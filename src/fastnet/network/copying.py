"""Networks as values: copied, pickled, and sent to other processes.

What a network is made of goes along: ops, slicers, schedulers, models and their optimizers. What it
works out of them (plans, graphs, locks) is worked out anew.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from fastnet.backend.facts import name_of
from fastnet.backend.framework import framework_of
from fastnet.errors import describe_op
from fastnet.frameworks import FRAMEWORKS
from fastnet.op.op import Op
from fastnet.types import Model, is_op, is_scheduler, is_slicer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Value"]


class Value:
    """Something that `copy` and `pickle` take whole, but for what only one object can have.

    Networks derive from it, and define what it says of them here.
    """

    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    _context: Any
    _plans: Any

    def _begin(self) -> None:
        """Set what is this object's alone, which no copy has."""
        raise NotImplementedError

    def _move_in(self) -> None:
        """Get ready for the machine, if the network was made for another one."""

    def _require_apart(self, op: Any) -> None:
        """Refuse an op that holds parts of models, where `pickle` would save them by themselves."""

    def _copy_models(self, memo: dict[int, Any]) -> None:
        """Copy, ahead of all that refers to them, models that `copy` itself would not get right."""

    def __copy__(self) -> Self:
        """Make a second network of the same ops; both have the same lists."""
        made = object.__new__(type(self))
        _restore(made, _state(self, "copied"))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the network with its ops, its models and their optimizers."""
        state = _state(self, "copied")
        made = object.__new__(type(self))
        memo[id(self)] = made
        self._copy_models(memo)
        for item, where in _parts(self):
            try:
                _require_whole(item)
                copy.deepcopy(item, memo)
            except Exception as error:
                raise TypeError(_text(self, "copied", item, where, _copies, error)) from error
        _restore(made, copy.deepcopy(state, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Tell `pickle` how to save the network."""
        state = _state(self, "pickled")
        for item, where in () if _has_rules_of_its_own() else _parts(self):
            try:
                _require_whole(item)
                for op in filter(is_op, [*_inner_ops(item), item]):
                    self._require_apart(op)
                _pickles(item)
            except Exception as error:
                text = _text(self, "pickled", item, where, _pickles, error)
                raise pickle.PicklingError(text) from error
        # with what sets the state, as a class derived from this one may have a way of its own to
        return _new, (type(self),), state, None, None, _restore


def _new(cls: type[Value]) -> Value:
    return object.__new__(cls)


def _state(network: Value, what: str) -> dict[str, Any]:
    """Take what a network is made of."""
    if network._context is not None:
        raise ValueError(
            f"This {_named(network)} is in use, and cannot be {what} before it is left. Leave it "
            "first."
        )
    begun = object.__new__(type(network))
    begun._begin()
    own = {*vars(begun), "_plans"}
    return {name: value for name, value in vars(network).items() if name not in own}


def _restore(network: Value, state: dict[str, Any]) -> None:
    vars(network).update(state)
    network._begin()
    # where one of the ops refers to the network, it may be still to come; the first opening goes on
    if all(map(_is_complete, [*network.ops, *network.postprocessing, *network.slicers])):
        network._move_in()
        network._plans  # noqa: B018  (from here on it is noticed what is written to an op)


def _is_complete(item: Any) -> bool:
    if is_scheduler(item):
        try:
            return all(value is None or _is_complete(value) for value in item.get_all_values())
        except AttributeError:
            return False
    return is_op(item) or is_slicer(item)


def _parts(network: Value) -> Iterator[tuple[Any, str]]:
    """List what a network is made of, each with what to call it."""
    for model in network.models:
        yield model, f"the model '{name_of(model)}' ({type(model).__name__})"
    for place, op in enumerate(network.ops):
        yield op, describe_op(op, place)
    for place, op in enumerate(network.postprocessing):
        yield op, f"{describe_op(op, place)} of the postprocessing"
    for place, slicer in enumerate(network.slicers):
        yield slicer, f"{describe_op(slicer)} (slicer {place})"


def _named(network: Value) -> str:
    names = [name_of(model) for model in network.models]
    return f"{type(network).__name__}{f' of the models {names}' if names else ''}"


def _text(
    network: Value,
    what: str,
    item: Any,
    where: str,
    attempt: Callable[[Any], None],
    error: Exception,
) -> str:
    """Word the error of something that cannot be copied, or pickled."""
    inner = next((op for op in _inner_ops(item) if _fails(attempt, op)), None)
    if inner is not None:
        where = f"{describe_op(inner)} inside of {where}"
        item = inner
    held = None
    if _fails(attempt, item):
        held = next((key for key, value in _attributes(item) if _fails(attempt, value)), None)
    return (
        f"This {_named(network)} cannot be {what} because of {where}"
        f"{f', which holds `{held}`' if held else ''}: {error}. Hold nothing that is open, such as "
        "a file or a lock, and functions that a module defines rather than a lambda or a local one."
    )


def _inner_ops(item: Any) -> Iterator[Any]:
    """List the ops inside of an op, or those that a scheduler stands for, innermost first."""
    if is_scheduler(item):
        inside = [value for value in item.get_all_values() if value is not None]
    else:
        inside = item.inner_ops() if isinstance(item, Op) else []
    for op in inside:
        yield from _inner_ops(op)
        yield op


def _require_whole(item: Any) -> None:
    for one in [*_inner_ops(item), item]:
        setter = getattr(type(one), "__setstate__", None)
        if getattr(setter, "__module__", "").partition(".")[0] == "fastestimator":
            raise TypeError(
                f"{type(one).__name__} is FastEstimator's, which saves of it only what is to be "
                "put into another one that the program has made; use fastnet's"
            )


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    # the names that users know first
    named = sorted(getattr(item, "__dict__", {}).items(), key=lambda pair: pair[0].startswith("_"))
    for name, value in named:
        if not isinstance(value, ModuleType):  # an op saves the name of a module
            yield name, value


def _fails(attempt: Callable[[Any], None], value: Any) -> bool:
    try:
        attempt(value)
    except Exception:
        return True
    return False


def _copies(item: Any) -> None:
    copy.deepcopy(item)


def _pickles(item: Any) -> None:
    _Trial(io.BytesIO()).dump(item)


class _Trial(ForkingPickler):
    """Tells whether something can be pickled, past all that is large and can be."""

    def persistent_id(self, obj: Any) -> Any:
        # another network looks itself through
        return "large" if isinstance(obj, Value) or _is_large(obj) else None


def _is_large(value: Any) -> bool:
    package = type(value).__module__.partition(".")[0]
    if package == "numpy":
        return hasattr(value, "dtype") and not value.dtype.hasobject
    # a Keras model is saved to be pickled, and says itself what is wrong with it
    libraries = {framework.library for framework in FRAMEWORKS.values()}
    is_tensor = package in libraries and hasattr(value, "dtype")
    return is_tensor or framework_of(value) == "tf"


def _has_rules_of_its_own() -> bool:
    """Return whether who pickles may take more than `pickle` does, as cloudpickle takes lambdas.

    Such a pickler has a method of its own that is being run.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        pickler = frame.f_locals.get("self")
        if isinstance(pickler, (pickle.Pickler, pickle._Pickler)):
            return True
        frame = frame.f_back
    return False
