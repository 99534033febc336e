"""The base class of all ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from fastnet._execute import get_inputs_by_op, write_outputs_by_op
from fastnet.op.copies import get_state, set_state
from fastnet.types import Forward, State
from fastnet.util.collections import to_list, to_set
from fastnet.util.formatting import format_repr
from fastnet.util.names import check_ds_id, check_io_names, parse_modes

__all__ = [
    "Op",
    "bind_forward",
    "get_inputs_by_op",
    "is_delete",
    "is_overridden",
    "takes_gradients",
    "write_outputs_by_op",
]


class Op:
    """One step of a graph: it reads some keys of a batch and writes others.

    A network hands the values of `inputs` to the op's ``forward(data, state)``, and stores what
    comes back under `outputs`. The form of both follows from the form of the keys: a string means
    one bare value, a list of strings a list of values. So ``inputs="x"`` makes `data` the value of
    "x", and ``inputs=["x"]`` makes it a list that holds that value. In place of a list of values
    `forward` can return a tuple, or a mapping that has every output among its keys. An op that
    wants lists however its keys were given sets `in_list`, or `out_list`, to True after
    ``super().__init__``.

    What is written to an op counts from the next opening of its network on. Until then it may go on
    with what it had.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        AssertionError: If a key, a mode or a dataset id is malformed.
        TypeError: If a key is no string.

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
    """Whether `forward` takes a list of values rather than one bare value."""
    out_list: bool
    """Whether `forward` returns a list of values rather than one bare value."""
    deletes_inputs: bool = False
    """Whether this op removes its inputs from the batch instead of reading them."""
    resolved_from: ClassVar[tuple[str, ...]] = ()
    """The attributes that `build` goes by, so that it is called again after one of them changed."""
    alike_on_ranks: ClassVar[tuple[str, ...]] = ()
    """The attributes that must have the same values on every rank of a distributed run."""

    def __init__(
        self,
        inputs: str | Iterable[str] | None = None,
        outputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        self._put_names(inputs, outputs, mode, ds_id)
        self.in_list = not (inputs is None or isinstance(inputs, str))
        self.out_list = not (outputs is None or isinstance(outputs, str))

    def __repr__(self) -> str:
        return format_repr(self, self._told())

    def _told(self) -> list[str]:
        """List what the repr tells, before the modes and the datasets."""
        read, written = (", ".join(getattr(self, keys, ())) for keys in ("inputs", "outputs"))
        return [f"{read} -> {written}".strip() if read or written else ""]

    def _put_names(self, inputs: Any, outputs: Any, mode: Any, ds_id: Any) -> None:
        try:
            # copies, so that a list that the user goes on changing does not change the op
            self.inputs = list(check_io_names(to_list(inputs)))
            self.outputs = list(check_io_names(to_list(outputs)))
            self.mode = set(parse_modes(to_set(mode)))
            self.ds_id = set(check_ds_id(to_set(ds_id)))
        except (AssertionError, TypeError) as error:
            raise type(error)(f"{type(self).__name__}: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        return get_state(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_state(self, state)

    def inner_ops(self) -> list[Any]:
        """List the ops that this op runs."""
        return []

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, and work out what follows from it, as `__init__` does.

        A network calls this when it is opened after the op's keys, modes, dataset ids or settings
        have changed, and `build` after it where the op has settings.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            TypeError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        own = self.library_class()
        # a class derived from it may have keys of its own, which the library's would refuse
        if own.resolved_from and (changed or type(self) is own):
            self._take_over(self._anew(own), own.resolved_from)

    @classmethod
    def library_class(cls) -> Any:
        """Find the class of this library that an op is of, or derives from.

        Returns:
            The class.
        """
        return next(one for one in cls.__mro__ if one.__module__.startswith("fastnet.op."))

    def _anew(self, own: Any) -> Op:
        """Make an op of the library's class with the settings that this one has now."""
        settings = {name: getattr(self, name) for name in own.resolved_from}
        made: Op = own(inputs=list(self.inputs), outputs=list(self.outputs), **settings)
        return made

    def _take_over(self, made: Op, settings: Iterable[str]) -> None:
        """Take over what another op of the class has worked out."""
        for name, value in vars(made).items():
            if name in settings or name.startswith("_"):
                vars(self)[name] = value


def is_delete(op: object) -> bool:
    """Return whether an op removes its inputs from the batch.

    Args:
        op: An op, of fastnet or of anybody else.

    Returns:
        The op's `deletes_inputs`. An op without that attribute deletes if its class, or a base of
        it, is called Delete.

    >>> is_delete(Op(inputs="x"))
    False
    """
    flag = getattr(op, "deletes_inputs", None)
    if flag is not None:
        return bool(flag)
    return any(base.__name__ == "Delete" for base in type(op).__mro__)


def takes_gradients(op: Any) -> bool:
    """Return whether an op takes gradients, and so may keep a graph for a later op."""
    return hasattr(op, "fe_retain_graph") and op.fe_retain_graph() is not None


def is_overridden(op: Any, forward: Any) -> bool:
    """Return whether an op runs another `forward` than the given one of its library class."""
    return getattr(op.forward, "__func__", None) is not forward


def bind_forward(op: Any, defer: bool, retain_graph: bool) -> Forward:
    """Return an op's forward with the settings that a network has for it; the op keeps its own."""
    bound: Forward | None = op.bind(defer, retain_graph) if hasattr(op, "bind") else None
    if bound is not None:
        return bound

    def forward(data: Any, state: State) -> Any:
        # A forward of the user's own reads the settings from the op, so set them for this call.
        deferred = getattr(op, "defer", None)
        retained = op.fe_retain_graph() if hasattr(op, "fe_retain_graph") else None
        try:
            if deferred is not None and defer:
                op.defer = True
            if retained is not None:
                op.fe_retain_graph(retain_graph)
            return op.forward(data, state)
        finally:
            if deferred is not None and defer:
                op.defer = deferred
            if retained is not None:
                op.fe_retain_graph(retained)

    return forward
