"""Slices a batch into minibatches, and unslices their results."""

from fastnet.errors import add_note, missing_key, not_a_batch


def check_slicers(slicers):
    """Check that no key is sliced or unsliced twice, nor any unsliced if none is sliced."""
    cdef set sliced = set(), unsliced = set(), again
    for slicer in slicers:
        again = sliced.intersection(slicer.slice_inputs)
        if again:
            raise ValueError(
                f"Multiple slicers slice the same keys: {sorted(again)}, {name(slicer)} among "
                "them. Let one slicer slice each key."
            )
        again = unsliced.intersection(slicer.unslice_inputs)
        if again:
            raise ValueError(
                f"Multiple slicers unslice the same keys: {sorted(again)}, {name(slicer)} among "
                "them. Let one slicer unslice each key."
            )
        sliced.update(slicer.slice_inputs)
        unsliced.update(slicer.unslice_inputs)
    if unsliced and not sliced:
        raise ValueError(
            f"The keys {sorted(unsliced)} are to be unsliced, but no active slicer slices "
            "anything. Give a slicer keys to `slice`, or restrict both to the same mode and ds_id."
        )


def forward_slicers(slicers, data):
    """Slice a batch into a list of dicts, which share the values of keys that no slicer slices."""
    cdef list minibatches = None
    cdef list slices
    cdef dict shared
    cdef dict minibatch
    cdef Py_ssize_t index, column
    cdef list keys
    first_slicer = None
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
            slices = list(slicer.slice_batches(values))
        except Exception as error:
            add_note(error, f"Raised by {name(slicer)} while it sliced {keys}.")
            raise
        if minibatches is None:
            first_slicer = slicer
            minibatches = [shared.copy() for _ in slices]
        elif len(slices) != len(minibatches):
            raise ValueError(
                f"Slicers disagree on the number of minibatches: {name(first_slicer)} made "
                f"{len(minibatches)} of {list(first_slicer.slice_inputs)}, {name(slicer)} made "
                f"{len(slices)} of {keys}. All active slicers must slice a batch into the "
                "same number of minibatches."
            )
        for index in range(len(slices)):
            minibatch = minibatches[index]
            parts = tuple(slices[index])
            if len(parts) < len(keys):
                raise ValueError(
                    f"{name(slicer)} slices {keys}, but its slice {index} has {len(parts)} "
                    f"value{'' if len(parts) == 1 else 's'}. Let slice_batches return a value for "
                    "each key in each slice."
                )
            for column in range(len(keys)):
                minibatch[keys[column]] = parts[column]
    return [] if minibatches is None else minibatches


def reverse_slicers(slicers, data, original_data):
    """Unslice the results of minibatches into those of the batch.

    A key that no slicer unslices has the value of the original batch, or else of the first
    minibatch.
    """
    cdef dict batch = {}
    cdef list minibatches = list(data)
    if not minibatches:
        # The batch was sliced along an axis of length 0.
        return dict(original_data)
    first = minibatches[0]
    for slicer in slicers:
        for key in slicer.unslice_inputs:
            if key not in first:
                continue
            for minibatch in minibatches:
                if key not in minibatch:
                    raise missing_key(slicer, key, minibatch, verb="unslices")
            try:
                slices = tuple([minibatch[key] for minibatch in minibatches])
                batch[key] = slicer._unslice_batch(slices, key=key)
            except Exception as error:
                add_note(error, f"Raised by {name(slicer)} while it unsliced '{key}'.")
                raise
    for key in first:
        if key not in batch:
            batch[key] = original_data[key] if key in original_data else first[key]
    return batch


cdef str name(slicer):
    return type(slicer).__name__
