"""The base class of all ops."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet._execute import get_inputs_by_op, write_outputs_by_op
from fastnet.util.collections import to_list, to_set
from fastnet.util.names import check_ds_id, check_io_names, parse_modes

__all__ = ["Op", "get_inputs_by_op", "is_delete", "write_outputs_by_op"]


class Op:
    """One step of a graph: it reads some keys of a batch and writes others.

    A network hands the values of `inputs` to the op's ``forward(data, state)``, and stores what
    comes back under `outputs`. The form of both follows from the form of the keys: a string means
    one bare value, a list of strings a list of values. So ``inputs="x"`` makes `data` the value of
    "x", and ``inputs=["x"]`` makes it a list that holds that value. An op that wants lists however
    its keys were given sets `in_list`, or `out_list`, to True after ``super().__init__``.

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

    def __init__(
        self,
        inputs: str | Iterable[str] | None = None,
        outputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        try:
            # copies, so that a list that the user goes on changing does not change the op
            self.inputs = list(check_io_names(to_list(inputs)))
            self.outputs = list(check_io_names(to_list(outputs)))
            self.mode = parse_modes(to_set(mode))
            self.ds_id = set(check_ds_id(to_set(ds_id)))
        except (AssertionError, TypeError) as error:
            raise type(error)(f"{type(self).__name__}: {error}") from None
        self.in_list = not (inputs is None or isinstance(inputs, str))
        self.out_list = not (outputs is None or isinstance(outputs, str))


def is_delete(op: object) -> bool:
    """Tell whether an op removes its inputs from the batch.

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
