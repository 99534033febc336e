"""Ops on numpy arrays, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np

from fastnet._execute import split_outputs
from fastnet._nest import map_leaves
from fastnet.backend.convert import to_tensor
from fastnet.errors import add_note, describe_op, missing_key, shorten
from fastnet.op.checks import require_arguments, require_function
from fastnet.op.op import Op, get_inputs_by_op, is_delete, write_outputs_by_op
from fastnet.types import Forward, Keys, Names
from fastnet.util.padding import pad_batch
from fastnet.util.tensors import to_number


class FilteredData:
    """The result of an op that drops its sample or batch.

    Args:
        replacement: Whether other data replaces what is dropped, so that an epoch keeps its length.
    """

    def __init__(self, replacement: bool = True) -> None:
        self.replacement = replacement

    def __repr__(self) -> str:
        return f"FilteredData(replacement={self.replacement})"


class NumpyOp(Op):
    """An op on numpy arrays; by itself it returns its input.

    A pipeline calls `forward` with each sample. A network calls `forward_batch` with whole batches,
    after its tensor ops. Derive from it and define `forward`.

    Args:
        inputs: The key or keys to read. `forward` gets one value for a string, otherwise a list.
        outputs: The key or keys to write. `forward` returns one value for a string, otherwise a
            list.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all other modes. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all other datasets.
            None for every dataset.

    >>> class Double(NumpyOp):
    ...     def forward(self, data, state):
    ...         return data * 2
    >>> Double(inputs="x", outputs="x").forward_batch(np.array([1, 2]), {"mode": "infer"})
    array([2, 4])
    """

    in_place_edits: bool
    """Whether `forward` modifies the arrays it is given, which are then copied before.

    It is set when an op first fails to modify a read-only array. An op may set it in ``__init__``.
    """

    def __init__(
        self,
        inputs: Keys | None = None,
        outputs: Keys | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_place_edits = False

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        """Compute the outputs for one sample.

        Args:
            data: The value of the input, or a list of values.
            state: The state, with at least the "mode".

        Returns:
            The value of the output, or a list of values; or `FilteredData` to drop the sample.
        """
        return data

    def forward_batch(self, data: Any, state: dict[str, Any]) -> Any:
        """Compute the outputs for a batch, by default with `forward` for each sample.

        Args:
            data: The batched array of the input, or a list of arrays.
            state: The state, with at least the "mode".

        Returns:
            The batched array of the output, or a list of arrays.

        Raises:
            ValueError: If the batch sizes of several inputs differ.
        """
        return _forward_samples(self, data, state)


class Batch(NumpyOp):
    """Separate the ops of a pipeline that run on samples from those that run on batches.

    See `NumpyOp` for `mode` and `ds_id`.

    Args:
        batch_size: The number of samples in a batch. None for that of the pipeline.
        drop_last: Whether to drop a last batch with fewer samples.
        pad_value: The value with which smaller arrays are padded to the largest shape in their
            batch. None for no padding. Excludes `collate_fn`.
        collate_fn: The function that makes a batch of a list of samples. None for torch's
            `default_collate`. Excludes `pad_value`.

    Raises:
        TypeError: If `collate_fn` is not callable.
        ValueError: If `batch_size` is not an int of at least 0, or both `pad_value` and
            `collate_fn` are given.

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
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(mode=mode, ds_id=ds_id)
        size: Any = batch_size
        if size is not None and (not isinstance(size, int) or size < 0):
            raise ValueError(
                f"Batch's batch_size must be an int of at least 0, or None, not "
                f"{shorten(batch_size)}."
            )
        if pad_value is not None and collate_fn is not None:
            raise ValueError(
                "Batch takes a pad_value or a collate_fn, not both: pad in the collate_fn."
            )
        if collate_fn is not None:
            require_function(self, "collate_fn", collate_fn)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._pad_value = pad_value
        self._collate_fn = collate_fn

    @property
    def collate_fn(self) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """The function that makes a batch of a list of samples."""
        if self._collate_fn is not None:
            return self._collate_fn
        from torch.utils.data import default_collate

        if self._pad_value is None:
            collate: Callable[[list[dict[str, Any]]], dict[str, Any]] = default_collate
            return collate
        value = self._pad_value

        def pad_and_collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
            # Padding replaces values, and the samples belong to the dataset.
            batch = [dict(sample) for sample in batch]
            pad_batch(batch, value)
            collated: dict[str, Any] = default_collate(batch)
            return collated

        return pad_and_collate


class Delete(NumpyOp):
    """Remove keys and their values. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        keys: The key or keys to remove.

    Raises:
        ValueError: In a network, if there is no key.

    >>> data = {"x": 1, "y": 2}
    >>> forward_numpyop([Delete("x")], data, {"mode": "train"})
    >>> data
    {'y': 2}
    """

    deletes_inputs = True
    n_inputs = "+"

    def __init__(self, keys: Keys, mode: Names = None, ds_id: Names = None) -> None:
        super().__init__(inputs=keys, mode=mode, ds_id=ds_id)

    def forward(self, data: Any, state: dict[str, Any]) -> None:
        """Do nothing: the caller removes the keys."""

    def forward_batch(self, data: Any, state: dict[str, Any]) -> None:
        """Do nothing: the caller removes the keys."""


class LambdaOp(NumpyOp):
    """Apply a function to the inputs. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        fn: A function with one argument for each input: samples in a pipeline, batches in a
            network. Returns the output, or a sequence of outputs.
        inputs: The key or keys to read.
        outputs: The key or keys to write.

    Raises:
        TypeError: If `fn` is not callable.
        ValueError: In a network, if `fn` does not take as many arguments as there are inputs.

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

    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        """Call the function."""
        return self.fn(*data)

    def forward_batch(self, data: list[Any], state: dict[str, Any]) -> Any:
        """Call the function with batches."""
        return self.forward(data, state)


class RemoveIf(NumpyOp):
    """Drop data for which a condition holds, in a pipeline. See `NumpyOp` for `mode` and `ds_id`.

    A network does not accept it, because its tensor ops have already run on the batch.

    Args:
        fn: The condition, with one argument for each input. Data for which it returns True is
            dropped.
        replacement: Whether other data replaces what is dropped, so that an epoch keeps its length.
        inputs: The key or keys to read.

    Raises:
        TypeError: If `fn` is not callable.
        ValueError: If `fn` does not take as many arguments as there are inputs.

    >>> too_dark = RemoveIf(lambda image: image.mean() < 0.1, inputs="image")
    >>> forward_numpyop([too_dark], {"image": np.zeros(4)}, {"mode": "train"})
    FilteredData(replacement=True)
    """

    def __init__(
        self,
        fn: Callable[..., bool],
        replacement: bool = True,
        inputs: Keys | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, mode=mode, ds_id=ds_id)
        require_function(self, "fn", fn)
        if type(self).forward is RemoveIf.forward:
            require_arguments(self, "fn", fn, self.inputs)
        self.filter_fn = fn
        self.in_list = True
        self.replacement = replacement

    def forward(self, data: list[Any], state: dict[str, Any]) -> FilteredData | None:
        """Return `FilteredData` if the condition holds, otherwise None."""
        return FilteredData(replacement=self.replacement) if self.filter_fn(*data) else None

    def forward_batch(self, data: list[Any], state: dict[str, Any]) -> FilteredData | None:
        """Return `FilteredData` if the condition holds for a whole batch, otherwise None."""
        return self.forward(data, state)


def forward_numpyop(
    ops: Sequence[Any],
    data: MutableMapping[str, Any],
    state: dict[str, Any],
    batched: str | None = None,
    shared: bool = True,
) -> FilteredData | None:
    """Run numpy ops in order on a sample or a batch, and store what they return.

    In a batch only the values that the ops read or write are converted to arrays and back. If an op
    raises an error or drops the data, the batch is unchanged.

    Args:
        ops: The ops.
        data: The sample or batch, a mapping that is written to. Its tensors are not modified.
        state: The state, with at least the "mode".
        batched: For a batch, the type of the resulting values: "torch", "tf" or "np". None for a
            sample, whose values are passed to the ops as they are.
        shared: Whether to allocate new torch tensors in shared memory.

    Returns:
        The `FilteredData` of the op that dropped the data, after which no op has run; else None.

    Raises:
        KeyError: If an op reads or deletes a key that does not exist.
        ValueError: If the number of returned values is not that of the outputs, or a returned
            mapping lacks an output.
        TypeError: If an op with several outputs returns neither a list, a tuple nor a mapping.

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
    """Return the function that runs an op on a batch: `forward_batch` or `forward` per sample."""
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
    """Run numpy ops on a batch as `forward_numpyop` does; `bind` returns the function of an op."""
    arrays: dict[str, Any] = {}
    # The arrays as they were converted, to find those that no op has replaced.
    converted: dict[str, Any] = {}
    # For each deleted key, the op that deleted it, and the op's index.
    deleted: dict[str, tuple[Any, int]] = {}
    for position, op in enumerate(ops):
        deletes = is_delete(op)
        for key in op.inputs:
            if key in arrays:
                continue
            if key in deleted or key not in data:
                available = (arrays.keys() | data.keys()) - deleted.keys()
                deleted_by = describe_op(*deleted[key]) if key in deleted else None
                verb = "deletes" if deletes else "reads"
                raise missing_key(op, key, available, position, deleted_by, verb)
            if not deletes:
                arrays[key] = converted[key] = _copy_to_arrays(data[key])
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
    # Convert before anything is stored, so that an error leaves the batch unchanged.
    tensors = {}
    for key, value in arrays.items():
        tensor = to_tensor(value, batched)
        if key in converted and value is converted[key]:
            tensor = _restore_dtype(tensor, data[key])
        tensors[key] = to_tensor(tensor, batched, shared_memory=shared)
    for key in deleted:
        data.pop(key, None)
    data.update(tensors)
    return None


def _restore_dtype(tensor: Any, original: Any) -> Any:
    """Cast an unchanged value back to a dtype that numpy does not have, such as bfloat16."""
    dtype = getattr(original, "dtype", None)
    if dtype is not None and isinstance(original, type(tensor)) and dtype != tensor.dtype:
        return tensor.to(dtype)
    return tensor


def _run(op: Any, index: int, store: Any, forward: Forward, state: dict[str, Any]) -> Any:
    """Run an op, with copies of the arrays if it is known to modify them."""
    edits_in_place = getattr(op, "in_place_edits", False)
    try:
        try:
            return forward(get_inputs_by_op(op, store, copy_on_write=edits_in_place), state)
        except ValueError as error:
            # numpy raises no more specific error than "assignment destination is read-only".
            if edits_in_place or "read-only" not in str(error):
                raise
        op.in_place_edits = True
        return forward(get_inputs_by_op(op, store, copy_on_write=True), state)
    except Exception as error:
        add_note(error, f"Raised by {describe_op(op, index)}.")
        raise


def _forward_samples(op: Any, data: Any, state: dict[str, Any]) -> Any:
    """Run an op on each sample of a batch, and stack the results."""
    if not op.inputs:
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
    # The name is that of FastEstimator's class.
    return isinstance(result, FilteredData) or type(result).__name__ == "FilteredData"


def _copy_to_arrays(data: Any) -> Any:
    """Copy the tensors, arrays and numbers of a nest to numpy arrays."""

    def copy(value: Any) -> Any:
        return value if value is None or isinstance(value, (str, bytes)) else to_number(value)

    return map_leaves(data, copy)
