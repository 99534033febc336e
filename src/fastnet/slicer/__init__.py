"""Slicers, which cut a batch into minibatches and join the results.

A network with slicers runs its ops once per minibatch. `slice_batches` cuts the values of
`slice_inputs`, each into the same number of pieces. Keys that are not cut are the same in every
minibatch. `_unslice_batch` joins the pieces of each key of `unslice_inputs`. Any other key has the
value that it has in the batch, or else in the first minibatch.
"""

from fastnet.slicer.axis_slicer import AxisSlicer
from fastnet.slicer.mean_unslicer import MeanUnslicer
from fastnet.slicer.slicer import Slicer
from fastnet.slicer.sliding_slicer import SlidingSlicer

__all__ = ["AxisSlicer", "MeanUnslicer", "Slicer", "SlidingSlicer"]
