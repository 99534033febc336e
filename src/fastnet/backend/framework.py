"""Which framework a model belongs to."""

from fastnet.backend.dispatch import framework_of

__all__ = ["framework_of"]
