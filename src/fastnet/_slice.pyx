"""A batch cut into minibatches, and minibatches put together again.

A slicer cuts the values of some keys and joins the values of some keys; this module does the rest:
it lays the cut pieces out as minibatches, shares what is not cut, and fills up what is not joined.
"""

from fastnet.errors import add_note, missing_key, not_a_batch


def check_slicers(slicers):
    """Refuse slicers that get in each other's way.

    Args:
        slicers: The slicers that would work on one batch.

    Raises:
        ValueError: If two of them cut, or join, the same key, or if keys are joined and none is
            cut.
    """
    cdef set cut = set(), joined = set(), again
    for slicer in slicers:
        again = cut.intersection(slicer.slice_inputs)
        if again:
            raise ValueError(
                f"Multiple slicers slice the same keys: {sorted(again)}, {name(slicer)} among "
                "them. Let one slicer cut each key."
            )
        again = joined.intersection(slicer.unslice_inputs)
        if again:
            raise ValueError(
                f"Multiple slicers un-slice the same keys: {sorted(again)}, {name(slicer)} among "
                "them. Let one slicer put each key together."
            )
        cut.update(slicer.slice_inputs)
        joined.update(slicer.unslice_inputs)
    if joined and not cut:
        raise ValueError(
            f"The keys {sorted(joined)} are to be un-sliced, but no slicer in force slices "
            "anything. Give a slicer keys to `slice`, or restrict both to the same mode and ds_id."
        )


def forward_slicers(slicers, data):
    """Cut a batch into minibatches.

    Args:
        slicers: The slicers to cut with; those that cut nothing are passed over.
        data: The batch, a mapping of keys to values. It is not written to.

    Returns:
        A list of dicts, one a minibatch. A key that no slicer cuts is in each of them, with the
        batch's own value.

    Raises:
        KeyError: If a key to be cut is not in the batch.
        TypeError: If the batch is no mapping.
        ValueError: If slicers disagree on the number of minibatches.
    """
    cdef list minibatches = None
    cdef list pieces
    cdef dict shared
    cdef dict minibatch
    cdef Py_ssize_t index, position
    cdef list keys
    cutter = None
    if not hasattr(data, "keys"):
        raise not_a_batch(data)
    shared = dict(data)
    for slicer in slicers:
        keys = list(slicer.slice_inputs)
        if not keys:
            continue
        for key in keys:
            if key not in data:
                raise missing_key(slicer, key, data, verb="slices")
        values = tuple([data[key] for key in keys])
        try:
            pieces = list(slicer.slice_batches(values))
        except Exception as error:
            add_note(error, f"Raised by {name(slicer)} while it sliced {keys}.")
            raise
        if minibatches is None:
            cutter = slicer
            minibatches = [shared.copy() for _ in pieces]
        elif len(pieces) != len(minibatches):
            raise ValueError(
                f"Slicers disagree on the number of minibatches: {name(cutter)} made "
                f"{len(minibatches)} of {list(cutter.slice_inputs)}, {name(slicer)} made "
                f"{len(pieces)} of {keys}. All slicers in force must cut a batch into the same "
                "number of pieces."
            )
        for index in range(len(pieces)):
            minibatch = minibatches[index]
            parts = tuple(pieces[index])
            if len(parts) < len(keys):
                raise ValueError(
                    f"{name(slicer)} slices {keys}, but its piece {index} has {len(parts)} "
                    f"value{'' if len(parts) == 1 else 's'}. Let slice_batches return a value for "
                    "each key in each piece."
                )
            for position in range(len(keys)):
                minibatch[keys[position]] = parts[position]
    return [] if minibatches is None else minibatches


def reverse_slicers(slicers, data, original_data):
    """Put minibatches together into one batch.

    Args:
        slicers: The slicers to join with.
        data: The minibatches, a sequence of mappings with the same keys.
        original_data: The batch before it was cut.

    Returns:
        A dict. Keys that a slicer un-slices come from it, where the minibatches have them; every
        other key has the original batch's value, or else the first minibatch's. Of no minibatches
        it is the original batch.
    """
    cdef dict batch = {}
    cdef list minibatches = list(data)
    if not minibatches:
        # cut along an axis of length 0
        return dict(original_data)
    first = minibatches[0]
    for slicer in slicers:
        for key in slicer.unslice_inputs:
            if key not in first:
                continue
            for minibatch in minibatches:
                if key not in minibatch:
                    raise missing_key(slicer, key, minibatch, verb="un-slices")
            try:
                slices = tuple([minibatch[key] for minibatch in minibatches])
                batch[key] = slicer._unslice_batch(slices, key=key)
            except Exception as error:
                add_note(error, f"Raised by {name(slicer)} while it un-sliced '{key}'.")
                raise
    for key in first:
        if key not in batch:
            batch[key] = original_data[key] if key in original_data else first[key]
    return batch


cdef str name(slicer):
    return type(slicer).__name__
