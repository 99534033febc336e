"""Cuts a batch into minibatches, and joins minibatches into a batch."""

from fastnet.errors import add_note, missing_key, not_a_batch


def check_slicers(slicers):
    """Check that no key is cut or joined twice, and that a key is cut if any key is joined."""
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
            f"The keys {sorted(joined)} are to be un-sliced, but no active slicer slices "
            "anything. Give a slicer keys to `slice`, or restrict both to the same mode and ds_id."
        )


def forward_slicers(slicers, data):
    """Cut a batch into a list of dicts, which share the values of keys that no slicer cuts."""
    cdef list minibatches = None
    cdef list pieces
    cdef dict shared
    cdef dict minibatch
    cdef Py_ssize_t index, column
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
                f"{len(pieces)} of {keys}. All active slicers must cut a batch into the same "
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
            for column in range(len(keys)):
                minibatch[keys[column]] = parts[column]
    return [] if minibatches is None else minibatches


def reverse_slicers(slicers, data, original_data):
    """Join minibatches into a batch.

    A key that no slicer joins has the value of the original batch, or else of the first minibatch.
    """
    cdef dict batch = {}
    cdef list minibatches = list(data)
    if not minibatches:
        # The batch was cut along an axis of length 0.
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
