"""Slicers, which slice a batch into minibatches and unslice the results.

A network with slicers runs its ops once per minibatch. `slice_batches` slices the values of
`slice_inputs`, each into the same number of slices. Keys that are not sliced have the same value in
every minibatch. `_unslice_batch` makes one value of the slices of each key of `unslice_inputs`. The
result of any other key is its value in the batch, or if it has none, in the first minibatch.
"""

from fastnet.slicer.axis_slicer import AxisSlicer
from fastnet.slicer.mean_unslicer import MeanUnslicer
from fastnet.slicer.slicer import Slicer
from fastnet.slicer.sliding_slicer import SlidingSlicer

__all__ = ["AxisSlicer", "MeanUnslicer", "Slicer", "SlidingSlicer"]
