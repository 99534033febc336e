"""What workers compare of an opening before they train together."""

from __future__ import annotations

from typing import Any

from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.network.context import NetworkContext
from fastnet.util.launchers import tf_workers

__all__ = ["plan_of", "require_strategy"]


def plan_of(context: NetworkContext) -> dict[str, Any]:
    """Describe what a network is to run, in words that are the same on all workers.

    Args:
        context: The context.

    Returns:
        What is run by what it is called.
    """
    execution, state = context.plan, context.state
    plan: dict[str, Any] = {
        "epoch": int(state["epoch"]),
        "warmup": bool(state["warmup"]),
        "eager": bool(state["eager"]),
        "the number of ops": len(execution.ops),
    }
    for place, op in enumerate(execution.ops):
        plan[f"op {place}"] = f"{type(op).__name__} ({list(op.inputs)} -> {list(op.outputs)})"
    for model in sorted(execution.models, key=name_of):
        name = name_of(model)
        # Keras 2 cannot tell the weights of a Sequential that has none yet
        trained = model.trainable_variables if getattr(model, "built", True) else ()
        plan[f"the trained weights of model '{name}'"] = [list(one.shape) for one in trained]
        optimizer = type(get_metadata(model, "current_optimizer")).__name__
        plan[f"the optimizer of model '{name}'"] = optimizer
    return plan


def require_strategy() -> None:
    """Refuse to train alone in one of several workers.

    Raises:
        ValueError: If `TF_CONFIG` tells of others, but no strategy is in force.
    """
    count = tf_workers()
    if count > 1:
        raise ValueError(
            f"TF_CONFIG names {count} workers, but no strategy is in force: each would train by "
            "itself. Put `with fastnet.distributed.run():` around the program, call "
            "fastnet.distributed.init() first, or build models and open networks within the scope "
            "of a tf.distribute.MultiWorkerMirroredStrategy."
        )
