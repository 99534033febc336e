"""Ops over numpy arrays, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np

from fastnet._execute import split_outputs
from fastnet.backend.convert import copy_to_arrays, to_tensor
from fastnet.errors import add_note, describe_op, missing_key, shorten
from fastnet.op.checks import require_arguments, require_function
from fastnet.op.op import Op, get_inputs_by_op, is_delete, write_outputs_by_op
from fastnet.types import Forward
from fastnet.util.padding import pad_batch

__all__ = [
    "Batch",
    "Delete",
    "FilteredData",
    "LambdaOp",
    "NumpyOp",
    "RemoveIf",
    "forward_numpyop",
]


class FilteredData:
    """What an op returns in place of data that is not to be used.

    Args:
        replacement: Whether other data takes the place of what is left out; otherwise there is
            less of it.
    """

    def __init__(self, replacement: bool = True) -> None:
        self.replacement = replacement

    def __repr__(self) -> str:
        return f"FilteredData(replacement={self.replacement})"


class NumpyOp(Op):
    """An op that takes and returns numpy arrays.

    A pipeline runs `forward` on each sample; a network runs `forward_batch` on whole batches, once
    its tensor ops are done. `forward` is all that a class of your own needs.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    >>> class Double(NumpyOp):
    ...     def forward(self, data, state):
    ...         return data * 2
    >>> Double(inputs="x", outputs="x").forward_batch(np.array([1, 2]), {"mode": "infer"})
    array([2, 4])
    """

    in_place_edits: bool
    """Whether `forward` writes into the arrays it is given.

    It is found out when an op first fails to, and then spares the failure from there on. An op
    that does may say so in its ``__init__``.
    """

    def __init__(
        self,
        inputs: str | Iterable[str] | None = None,
        outputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_place_edits = False

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        """Transform one sample.

        Args:
            data: The value of `inputs`, or a list of values if `in_list` is true.
            state: The context, with at least the "mode".

        Returns:
            What to store under `outputs`: a value, or a list of values if `out_list` is true. Or
            `FilteredData`, to leave the sample out.
        """
        return data

    def forward_batch(self, data: Any, state: dict[str, Any]) -> Any:
        """Transform a batch: `forward` on each of its samples, unless a class knows better.

        Args:
            data: The batched array of `inputs`, or a list of them if `in_list` is true.
            state: The context, with at least the "mode".

        Returns:
            What to store under `outputs`: a batched array, or a list of them if `out_list` is true.

        Raises:
            ValueError: If the batches of several inputs have different sizes.
        """
        return _forward_samples(self, data, state)


class Batch(NumpyOp):
    """A mark in a pipeline's ops: those before it run on samples, those after it on batches.

    Args:
        batch_size: How many samples make a batch, in place of the pipeline's own number. None to
            leave that in force.
        drop_last: Whether a last batch with fewer samples is left out.
        pad_value: What to pad arrays with that are smaller than others of their batch. None for no
            padding. Excludes `collate_fn`.
        collate_fn: What makes a batch of a list of samples. Left out, torch's own
            `default_collate`. Excludes `pad_value`.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        TypeError: If `collate_fn` cannot be called.
        ValueError: If `batch_size` is no int of at least 0, or both `pad_value` and `collate_fn`
            are given.

    >>> batch = Batch(batch_size=2, pad_value=0)
    >>> batch.collate_fn([{"x": np.ones(1)}, {"x": np.ones(2)}])["x"].tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        batch_size: int | None = None,
        drop_last: bool = False,
        pad_value: float | None = None,
        collate_fn: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(mode=mode, ds_id=ds_id)
        given: Any = batch_size
        if given is not None and (not isinstance(given, int) or given < 0):
            raise ValueError(
                f"The batch_size of a Batch must be an int of at least 0, or None, but got "
                f"{shorten(batch_size)}."
            )
        if pad_value is not None and collate_fn is not None:
            raise ValueError(
                "Batch takes a pad_value or a collate_fn, not both: a collate_fn makes the whole "
                "batch, so pad in there."
            )
        if collate_fn is not None:
            require_function(self, "collate_fn", collate_fn)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._pad_value = pad_value
        self._collate_fn = collate_fn

    @property
    def collate_fn(self) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """What makes a batch of a list of samples."""
        if self._collate_fn is not None:
            return self._collate_fn
        if self._pad_value is not None:
            return self._pad_and_collate
        from torch.utils.data import default_collate

        collate: Callable[[list[dict[str, Any]]], dict[str, Any]] = default_collate
        return collate

    def _pad_and_collate(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        from torch.utils.data import default_collate

        assert self._pad_value is not None
        # padding replaces values, and the samples belong to the dataset
        samples = [dict(sample) for sample in batch]
        pad_batch(samples, self._pad_value)
        collated: dict[str, Any] = default_collate(samples)
        return collated


class Delete(NumpyOp):
    """Remove keys, and their values, from the batch.

    Args:
        keys: The key or keys.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        ValueError: In a network, if there is no key.

    >>> data = {"x": 1, "y": 2}
    >>> forward_numpyop([Delete("x")], data, {"mode": "train"})
    >>> data
    {'y': 2}
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
            raise ValueError("Delete has nothing to remove: give it a key.")

    def forward(self, data: Any, state: dict[str, Any]) -> None:
        """Do nothing: whoever runs the op removes the keys."""

    def forward_batch(self, data: Any, state: dict[str, Any]) -> None:
        """Do nothing: whoever runs the op removes the keys."""


class LambdaOp(NumpyOp):
    """Call a function.

    Args:
        fn: The function. Each input is an argument of its own. In a network it gets whole batches.
        inputs: The key or keys to read.
        outputs: The key or keys to write. For a list of keys the function returns a sequence.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        TypeError: If `fn` cannot be called.
        ValueError: In a network, if it does not take as many arguments as there are inputs.

    >>> data = {"x": 3, "y": 4}
    >>> total = LambdaOp(lambda x, y: x + y, inputs=["x", "y"], outputs="total")
    >>> forward_numpyop([total], data, {"mode": "train"})
    >>> data
    {'x': 3, 'y': 4, 'total': 7}
    """

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
            ValueError: If this is what it has.
        """
        if type(self).forward is LambdaOp.forward:
            require_arguments(self, "fn", self.fn, self.inputs)

    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        """Call the function on one sample.

        Args:
            data: The value of each input.
            state: The context, which the function does not see.

        Returns:
            What the function returns.
        """
        return self.fn(*data)

    def forward_batch(self, data: list[Any], state: dict[str, Any]) -> Any:
        """Call the function on a batch.

        Args:
            data: The batched array of each input.
            state: The context, which the function does not see.

        Returns:
            What the function returns.
        """
        return self.forward(data, state)


class RemoveIf(NumpyOp):
    """Leave out data that meets a condition.

    It works in a pipeline. A network, which has run on its batch by then, refuses it.

    Args:
        fn: The condition. Each input is an argument of its own; the data goes if it returns True.
        replacement: Whether other data takes the place of what is left out, so that an epoch keeps
            its number of steps; otherwise an epoch has fewer.
        inputs: The key or keys to read.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        TypeError: If `fn` cannot be called.
        ValueError: If it does not take as many arguments as there are inputs.

    >>> too_dark = RemoveIf(lambda image: image.mean() < 0.1, inputs="image")
    >>> forward_numpyop([too_dark], {"image": np.zeros(4)}, {"mode": "train"})
    FilteredData(replacement=True)
    """

    def __init__(
        self,
        fn: Callable[..., bool],
        replacement: bool = True,
        inputs: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, mode=mode, ds_id=ds_id)
        require_function(self, "fn", fn)
        if type(self).forward is RemoveIf.forward:
            require_arguments(self, "fn", fn, self.inputs)
        self.filter_fn = fn
        self.in_list = True
        self.replacement = replacement

    def forward(self, data: list[Any], state: dict[str, Any]) -> FilteredData | None:
        """Ask the condition.

        Args:
            data: The value of each input.
            state: The context, which the condition does not see.

        Returns:
            `FilteredData` if the data is to be left out, else None.
        """
        return FilteredData(replacement=self.replacement) if self.filter_fn(*data) else None

    def forward_batch(self, data: list[Any], state: dict[str, Any]) -> FilteredData | None:
        """Ask the condition of a whole batch.

        Args:
            data: The batched array of each input.
            state: The context, which the condition does not see.

        Returns:
            `FilteredData` if the batch is to be left out, else None.
        """
        return self.forward(data, state)


def forward_numpyop(
    ops: Sequence[Any],
    data: MutableMapping[str, Any],
    state: dict[str, Any],
    batched: str | None = None,
    shared: bool = True,
) -> FilteredData | None:
    """Run numpy ops, one after the other, on a sample or on a batch, and store what they return.

    On a batch, only the keys that the ops read or write are converted: copies of their values
    become arrays, and what the ops made of them becomes tensors again. Other keys are left exactly
    as they are, and so is the whole batch if an op raises or leaves the data out.

    Args:
        ops: The ops.
        data: The sample or batch. It is written to; the tensors in it are not.
        state: The context, with at least the "mode".
        batched: For a batch, what its values are to be afterwards: tensors of "torch" or "tf", or
            arrays ("np"). None for a sample, whose values are handed to the ops as they are.
        shared: Whether new torch tensors are put where other processes can read them.

    Returns:
        What an op returned in order to leave the data out, in which case the ops after it did not
        run; else None.

    Raises:
        KeyError: If an op reads or deletes a key that is not there.
        ValueError: If an op returns fewer values than it has outputs, or more, or a mapping that
            lacks one of them.
        TypeError: If an op of several outputs returns no list, no tuple and no mapping.

    >>> data = {"x": np.array([1.0, 2.0]), "y": "untouched"}
    >>> forward_numpyop([LambdaOp(np.sum, inputs="x", outputs="sum")], data, {}, batched="np")
    >>> data["sum"].item(), data["y"]
    (3.0, 'untouched')
    """
    if not ops:
        return None
    if batched is not None:
        return run_on_batch(ops, data, state, batched, shared)
    for position, op in enumerate(ops):
        if is_delete(op):
            for key in op.inputs:
                if key not in data:
                    raise missing_key(op, key, data, position, verb="deletes")
                del data[key]
            continue
        result = _run(op, position, data, op.forward, state)
        if _is_filtered(result):
            filtered: FilteredData = result
            return filtered
        if op.outputs:
            write_outputs_by_op(op, data, result, position)
    return None


def batch_forward(op: Any) -> Forward:
    """Return the function that runs an op on a batch: its own way, or its forward on each sample.

    Args:
        op: The op.

    Returns:
        What takes the arrays of a batch and the context, and gives arrays.
    """
    forward: Forward | None = getattr(op, "forward_batch", None)
    if forward is not None:
        return forward
    return lambda data, state: _forward_samples(op, data, state)


def run_on_batch(
    ops: Sequence[Any],
    data: MutableMapping[str, Any],
    state: dict[str, Any],
    batched: str,
    shared: bool,
    bind: Callable[[Any], Forward] = batch_forward,
) -> FilteredData | None:
    """Run numpy ops on a batch, as `forward_numpyop` does.

    Args:
        ops: The ops.
        data: The batch. It is written to; the tensors in it are not.
        state: The context.
        batched: What its values are to be afterwards: "torch", "tf" or "np".
        shared: Whether new torch tensors are put where other processes can read them.
        bind: Gives what runs an op on a batch.

    Returns:
        What an op returned in order to leave the data out, or None.

    Raises:
        KeyError: If an op reads or deletes a key that is not there.
        ValueError: If an op returns fewer values than it has outputs, or more, or a mapping that
            lacks one of them.
        TypeError: If an op of several outputs returns no list, no tuple and no mapping.
    """
    arrays: dict[str, Any] = {}
    read: dict[str, Any] = {}
    deleted: dict[str, tuple[Any, int]] = {}  # by which op, and its position
    for position, op in enumerate(ops):
        deletes = is_delete(op)
        for key in op.inputs:
            if key in arrays:
                continue
            if key in deleted or key not in data:
                there = (arrays.keys() | data.keys()) - deleted.keys()
                culprit = describe_op(*deleted[key]) if key in deleted else None
                verb = "deletes" if deletes else "reads"
                raise missing_key(op, key, there, position, culprit, verb)
            if not deletes:
                arrays[key] = read[key] = copy_to_arrays(data[key])
        if deletes:
            for key in op.inputs:
                arrays.pop(key, None)
            deleted.update(dict.fromkeys(op.inputs, (op, position)))
            continue
        result = _run(op, position, arrays, bind(op), state)
        if _is_filtered(result):
            filtered: FilteredData = result
            return filtered
        if op.outputs:
            write_outputs_by_op(op, arrays, result, position)
            for key in op.outputs:
                deleted.pop(key, None)
    # all conversions first, so that one that fails leaves the batch whole
    tensors = {}
    for key, value in arrays.items():
        tensor = to_tensor(value, batched)
        if key in read and value is read[key]:
            tensor = _typed_as(data[key], tensor)
        tensors[key] = to_tensor(tensor, batched, shared_memory=shared)
    for key in deleted:
        data.pop(key, None)
    data.update(tensors)
    return None


def _typed_as(before: Any, tensor: Any) -> Any:
    """Give a tensor that numpy had no type for, as bfloat16, its type back."""
    dtype = getattr(before, "dtype", None)
    if dtype is not None and isinstance(before, type(tensor)) and dtype != tensor.dtype:
        return tensor.to(dtype)
    return tensor


def _run(
    op: Any,
    position: int,
    store: MutableMapping[str, Any],
    forward: Callable[[Any, dict[str, Any]], Any],
    state: dict[str, Any],
) -> Any:
    try:
        return _run_with_retry(op, store, forward, state)
    except Exception as error:
        add_note(error, f"Raised by {describe_op(op, position)}.")
        raise


def _run_with_retry(
    op: Any,
    store: MutableMapping[str, Any],
    forward: Callable[[Any, dict[str, Any]], Any],
    state: dict[str, Any],
) -> Any:
    edits = getattr(op, "in_place_edits", False)
    try:
        return forward(get_inputs_by_op(op, store, copy_on_write=edits), state)
    except ValueError as error:
        # numpy has no better way to tell; its words are "assignment destination is read-only"
        if edits or "read-only" not in str(error):
            raise
    op.in_place_edits = True
    return forward(get_inputs_by_op(op, store, copy_on_write=True), state)


def _forward_samples(op: Any, data: Any, state: dict[str, Any]) -> Any:
    """Split a batch, run an op on each sample, and batch what comes out."""
    if not op.inputs:
        # nothing to split, so nothing to batch either
        return op.forward(data, state)
    _check_sizes(op, data if op.in_list else [data])
    samples = map(list, zip(*data, strict=True)) if op.in_list else data
    results = [op.forward(sample, state) for sample in samples]
    for result in results:
        if _is_filtered(result):
            return result
    if op.out_list:
        rows = [split_outputs(op, result, op.outputs) for result in results]
        return [np.array([row[index] for row in rows]) for index in range(len(op.outputs))]
    return np.array(results)


def _check_sizes(op: Any, values: Sequence[Any]) -> None:
    sizes = {}
    for key, value in zip(op.inputs, values, strict=False):
        try:
            sizes[key] = len(value)
        except TypeError as error:
            raise TypeError(
                f"{describe_op(op)} runs on one sample at a time, but '{key}' has no batch axis to "
                "split. Define forward_batch to handle it."
            ) from error
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"{describe_op(op)} runs on one sample at a time, but its inputs have different batch "
            f"sizes: {sizes}. Define forward_batch to handle them together."
        )


def _is_filtered(result: object) -> bool:
    # by name too, for FastEstimator's own
    return isinstance(result, FilteredData) or type(result).__name__ == "FilteredData"
