"""Steps of Keras models as programs that XLA has compiled."""
