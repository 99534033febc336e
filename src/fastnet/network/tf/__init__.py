"""Networks of Keras models, and how their steps run: eagerly, as graphs, on several devices."""

from fastnet.network.tf.network import TFNetwork

__all__ = ["TFNetwork"]
