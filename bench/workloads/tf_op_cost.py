"""In TensorFlow: what one op adds to a step, run op by op, or in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.op_cost import LIMIT
from bench.workloads.ops import CASES, CLASSES, OpCase
from bench.workloads.tf_supervised import model_of
from bench.workloads.tf_workload import TFWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import tensorflow as tf

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class TFOpCost(TFWorkload):
    """A step of a network of one op, op by op, beside its calls and a network of nothing.

    Attributes:
        case: The op and its batch.
    """

    case: OpCase

    baseline: ClassVar[str] = "tf_eager"
    references: ClassVar[tuple[str, ...]] = ("tf_eager",)
    group: ClassVar[str | None] = "tf_op_cost"
    over_calls: ClassVar[bool] = True
    in_turns: ClassVar[bool] = True
    only: ClassVar[frozenset[str] | None] = frozenset({"tf_eager", "fastnet", "fastestimator"})
    eager: ClassVar[bool] = True

    @property
    def goals(self) -> dict[str, Goal]:
        """The most that an op may add, in microseconds."""
        return dict.fromkeys(self.references, LIMIT)

    @property
    def steps_to_check(self) -> int:
        """Three where a model is trained, to see that its weights move alike."""
        return 3 if self.case.updates else 1

    def seed(self) -> None:
        """Set the generator of random numbers."""
        import tensorflow as tf

        tf.random.set_seed(0)

    def model(self) -> Any:
        """Return the model of ops that have one, with the same weights every time."""
        import keras

        return model_of([keras.Input((16,)), keras.layers.Dense(CLASSES)])

    def optimizer(self) -> Any:
        """Return the optimizer: of the kind that fastnet and FastEstimator know as "sgd"."""
        import keras

        if int(keras.__version__.partition(".")[0]) >= 3:
            return keras.optimizers.SGD(LEARNING_RATE)
        return keras.optimizers.legacy.SGD(LEARNING_RATE)

    def batch(self) -> dict[str, tf.Tensor]:
        """Return a batch, the same every time."""
        import tensorflow as tf

        return {key: tf.constant(value) for key, value in self.case.arrays(True).items()}


@dataclass(frozen=True)
class TFOpGraph(TFOpCost):
    """The same in a graph, beside a concrete function; nothing is taken off either."""

    baseline: ClassVar[str] = "tf_concrete_any"
    references: ClassVar[tuple[str, ...]] = ("tf_concrete_any",)
    group: ClassVar[str | None] = "tf_op_graph"
    only: ClassVar[frozenset[str] | None] = frozenset(
        {"tf_concrete_any", "fastnet", "fastestimator"}
    )
    eager: ClassVar[bool] = False


WORKLOADS = (
    *(TFOpCost(f"tf_op_{case.name}", f"{case.title}, eager", case) for case in CASES),
    *(
        TFOpGraph(f"tf_graph_{case.name}", f"{case.title}, static", case)
        for case in CASES
        # in a graph each library's random numbers are its own; and a step of nothing has no graph
        if case.name not in {"cutmix", "mixup", "delete"}
    ),
)
