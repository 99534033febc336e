"""How the steps of an opening are run whose random numbers start over when it is left."""

from __future__ import annotations

import tensorflow as tf

from fastnet.network.tf.runner import TFRunner

__all__ = ["ReseedingRunner"]


class ReseedingRunner(TFRunner):
    """Runs the steps of an opening in TensorFlow, and clears the Keras session after them."""

    def open(self) -> None:
        """Get ready for steps, those of a single batch op by op."""
        # as in FastEstimator, which draws other numbers for it than a graph does
        self.context.transforms = False
        super().open()

    def close(self) -> None:
        """Undo `open`, and clear the session."""
        super().close()
        # FastEstimator cannot clear the graphs of several devices
        if not isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy):
            tf.keras.backend.clear_session()
