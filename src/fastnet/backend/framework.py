"""Which framework a model belongs to, found out without importing any."""

from __future__ import annotations

import sys

__all__ = ["framework_of"]


def framework_of(model: object) -> str | None:
    """Tell a model's framework.

    Args:
        model: Anything.

    Returns:
        "torch", "tf", or None for something that is no model of either.

    >>> framework_of("a string") is None
    True
    """
    # a model exists only if its framework has been imported; Keras, which can compute with torch,
    # comes first, because then its models are torch's modules as well
    for name in ("keras", "tf_keras"):
        keras = sys.modules.get(name)
        if keras is not None and isinstance(model, keras.Model):
            return "tf"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    return None
