"""Slicers: a batch cut into minibatches that fit, and put together again."""

from fastnet.slicer.axis_slicer import AxisSlicer
from fastnet.slicer.mean_unslicer import MeanUnslicer
from fastnet.slicer.slicer import Slicer
from fastnet.slicer.sliding_slicer import SlidingSlicer

__all__ = ["AxisSlicer", "MeanUnslicer", "Slicer", "SlidingSlicer"]
