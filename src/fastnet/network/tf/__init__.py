"""Networks of Keras models, and how their steps are run: op by op, in graphs, on many devices."""

from fastnet.network.tf.network import TFNetwork

__all__ = ["TFNetwork"]
