"""The base class of all ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from fastnet._execute import get_inputs_by_op, write_outputs_by_op
from fastnet.op.copies import get_state, set_state
from fastnet.types import Keys, Names, State, is_op
from fastnet.util.collections import to_list, to_set
from fastnet.util.formatting import format_repr
from fastnet.util.names import check_ds_id, check_io_names, parse_modes

__all__ = [
    "Op",
    "PerInput",
    "get_inputs_by_op",
    "inner_ops_of",
    "is_delete",
    "is_overridden",
    "with_inner_ops",
    "write_outputs_by_op",
]


class Op:
    """One step of a graph: reads keys of a batch and writes keys.

    A network calls ``forward(data, state)`` with the values of `inputs`, and stores the result
    under `outputs`. For ``inputs="x"``, `data` is the value of "x"; for ``inputs=["x"]`` it is a
    list with that value. Likewise `forward` returns one value for ``outputs="y"``, and for a list
    of keys a list or tuple of values, or a mapping that contains the outputs. An op that always
    works on lists sets `in_list` or `out_list` to True after ``super().__init__``.

    A change of these attributes takes effect when the network is next entered.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all other modes. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all other datasets.
            None for every dataset.

    Raises:
        AssertionError: If a key, a mode or a dataset id is malformed.
        TypeError: If a key is not a string.

    >>> op = Op(inputs="x", outputs=["y"], mode="!train")
    >>> op.inputs, op.outputs, sorted(op.mode), op.in_list, op.out_list
    (['x'], ['y'], ['eval', 'infer', 'test'], False, True)
    >>> op
    Op(x -> y, mode=!train)
    """

    inputs: list[str]
    outputs: list[str]
    mode: set[str]
    ds_id: set[str]
    in_list: bool
    """Whether `forward` takes a list of values."""
    out_list: bool
    """Whether `forward` returns a list of values."""
    deletes_inputs: bool = False
    """Whether the op removes its inputs from the batch instead of reading them."""
    n_inputs: ClassVar[int | str | None] = None
    """The number of inputs: an int, "+" for one or more, or None for any number."""
    n_outputs: ClassVar[int | str | None] = None
    """The number of outputs: an int, "same" for one per input, or None for any number."""
    resolved_from: ClassVar[tuple[str, ...]] = ()
    """The settings that `__init__` and `build` derive other attributes from. After one of them has
    changed, both are called again when the network is next entered."""
    alike_on_ranks: ClassVar[tuple[str, ...]] = ()
    """The attributes that must have the same values on every rank of a distributed run."""

    def __init__(
        self,
        inputs: Keys | None = None,
        outputs: Keys | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        self._set_io(inputs, outputs, mode, ds_id)
        self.in_list = not (inputs is None or isinstance(inputs, str))
        self.out_list = not (outputs is None or isinstance(outputs, str))

    def __repr__(self) -> str:
        return format_repr(self, self._repr_parts())

    def _repr_parts(self) -> list[str]:
        """List what the repr shows before the modes and datasets."""
        inputs = ", ".join(getattr(self, "inputs", ()))
        outputs = ", ".join(getattr(self, "outputs", ()))
        return [f"{inputs} -> {outputs}".strip()] if inputs or outputs else []

    def _set_io(self, inputs: Any, outputs: Any, mode: Any, ds_id: Any) -> None:
        try:
            # Copy, so that later changes of the caller's list do not change the op.
            self.inputs = list(check_io_names(to_list(inputs)))
            self.outputs = list(check_io_names(to_list(outputs)))
            self.mode = set(parse_modes(to_set(mode)))
            self.ds_id = set(check_ds_id(to_set(ds_id)))
        except (AssertionError, TypeError) as error:
            raise type(error)(f"{type(self).__name__}: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        state = get_state(self)
        # A copy resolves its settings itself.
        state.pop("_last_resolved", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_state(self, state)

    def check_keys(self) -> None:
        """Check the number of inputs and outputs; a network calls this when it is made.

        Raises:
            ValueError: If they do not match `n_inputs` and `n_outputs`.
        """
        # Read from the class, because an op of the user may use these names for its own values.
        n_inputs, n_outputs = type(self).n_inputs, type(self).n_outputs
        if n_inputs == "+":
            inputs_fit = len(self.inputs) >= 1
        else:
            inputs_fit = n_inputs in (None, len(self.inputs))
        if n_outputs == "same":
            outputs_fit = len(self.outputs) == len(self.inputs)
        else:
            outputs_fit = n_outputs in (None, len(self.outputs))
        if not (inputs_fit and outputs_fit):
            raise ValueError(
                f"{type(self).__name__} takes {_describe_count(n_inputs, 'input')} and writes "
                f"{_describe_count(n_outputs, 'output')}, but its inputs are {self.inputs} and "
                f"its outputs {self.outputs}."
            )

    def inner_ops(self) -> list[Any]:
        """List the ops that this op runs."""
        return []

    def compared_state(self) -> dict[str, Any]:
        """Return the state, besides public attributes, that `forward` reads and a program compares.

        Values may change between steps; containers are replaced only when a setting changes.
        """
        return {}

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check the op's attributes after a change, and derive what follows from them.

        A network calls this when it is entered after the op's keys, modes, dataset ids or settings
        have changed, and then `build` if the op has settings.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            TypeError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        self._set_io(self.inputs, self.outputs, self.mode, self.ds_id)
        library_class = self.library_class()
        names = library_class.resolved_from
        # A derived class may have more keys than the library's class accepts.
        if names and (changed or type(self) is library_class):
            self._copy_settings_from(self._recreate(library_class), names)

    @classmethod
    def library_class(cls) -> Any:
        """Return the op's class, or its nearest base class that fastnet defines."""
        return next(base for base in cls.__mro__ if base.__module__.startswith("fastnet.op."))

    def _recreate(self, library_class: Any) -> Op:
        """Make an op of the library's class with the current settings of this op."""
        settings = {name: getattr(self, name) for name in library_class.resolved_from}
        recreated: Op = library_class(
            inputs=list(self.inputs), outputs=list(self.outputs), **settings
        )
        return recreated

    def _copy_settings_from(self, op: Op, names: Iterable[str]) -> None:
        """Copy settings, and the private attributes derived from them, from an op of the class."""
        for name, value in vars(op).items():
            if name in names or name.startswith("_"):
                vars(self)[name] = value


class PerInput(Op):
    """An op that applies the same function to each input; see `PerTensor` and `PerArray`."""

    n_inputs = "+"
    n_outputs = "same"

    def __init__(
        self, inputs: Keys, outputs: Keys, mode: Names = None, ds_id: Names = None
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True

    def apply(self, data: Any) -> Any:
        """Return the output for one input."""
        raise NotImplementedError(f"{type(self).__name__} must define apply.")

    def forward(self, data: list[Any], state: State) -> list[Any]:
        """Apply the function to each input."""
        if len(data) == 1:
            return [self.apply(data[0])]
        return [self.apply(value) for value in data]


def _describe_count(number: int | str | None, noun: str) -> str:
    if number is None:
        return f"any number of {noun}s"
    if isinstance(number, int):
        return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
    return f"at least one {noun}" if number == "+" else f"as many {noun}s"


def is_delete(op: object) -> bool:
    """Return whether an op removes its inputs from the batch.

    For an op of another library, this is whether its class, or a base class, is called Delete.
    """
    if isinstance(op, Op):
        return op.deletes_inputs
    return any(base.__name__ == "Delete" for base in type(op).__mro__)


def inner_ops_of(op: object) -> list[Any]:
    """List the ops that an op runs; those of another library are in its `ops`, or one in `op`."""
    if isinstance(op, Op):
        return op.inner_ops()
    ops = getattr(op, "ops", None)
    candidates = ops if isinstance(ops, (list, tuple)) else [getattr(op, "op", None)]
    return [inner for inner in candidates if is_op(inner)]


def with_inner_ops(ops: Iterable[Any]) -> Iterator[Any]:
    """Yield ops, each followed by the ops inside of it."""
    for op in ops:
        yield op
        yield from with_inner_ops(inner_ops_of(op))


def is_overridden(op: Any, forward: Any) -> bool:
    """Return whether an op's `forward` is not the given function of its library class."""
    return getattr(op.forward, "__func__", None) is not forward
