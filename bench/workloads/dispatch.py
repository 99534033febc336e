"""What calling a function of `fastnet.backend` costs beside calling the framework's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.workload import Framework, Workload

if TYPE_CHECKING:
    import numpy as np

Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Call:
    """A call of a function of the backend.

    Attributes:
        name: The function.
        step: Makes what is timed, of the function: it takes the values.
        differentiates: Whether it needs a graph, which numpy has not.
    """

    name: str
    step: Callable[[Callable[..., Any]], Step]
    differentiates: bool = False


# Two matrices and a mask, or what was differentiated, with what by, and with what recorded it.
CALLS = (
    Call("argmax", lambda function: lambda values: function(values[0], axis=1)),
    Call("cast", lambda function: lambda values: function(values[0], "float64")),
    Call("clip_by_value", lambda function: lambda values: function(values[0], 0.0, 1.0)),
    Call("concat", lambda function: lambda values: function(values[:2], axis=1)),
    Call("exp", lambda function: lambda values: function(values[0])),
    Call("expand_dims", lambda function: lambda values: function(values[0], axis=1)),
    Call("matmul", lambda function: lambda values: function(values[0], values[1])),
    Call("maximum", lambda function: lambda values: function(values[0], values[1])),
    Call("permute", lambda function: lambda values: function(values[0], [1, 0])),
    Call("reduce_max", lambda function: lambda values: function(values[0], axis=1)),
    Call("reduce_mean", lambda function: lambda values: function(values[0])),
    Call("reduce_sum", lambda function: lambda values: function(values[0], axis=1)),
    Call("reshape", lambda function: lambda values: function(values[0], [2, 8])),
    Call("squeeze", lambda function: lambda values: function(values[3], axis=1)),
    Call("where", lambda function: lambda values: function(values[2], values[0], values[1])),
    Call("zeros_like", lambda function: lambda values: function(values[0])),
    Call(
        "get_gradient",
        lambda function: lambda values: function(values[0], values[1], tape=values[2]),
        differentiates=True,
    ),
)


def arrays() -> list[np.ndarray[Any, Any]]:
    """Return two matrices, a mask, and a matrix with an axis of length 1 in it."""
    import numpy as np

    one, two = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    return [one, two, one > 0, one[:, None]]


@dataclass(frozen=True)
class Dispatch(Workload):
    """Call a function of the backend, and the framework's function that does the same.

    Attributes:
        call: The call.
        kind: What the values are: "torch", "tf" or "numpy".
    """

    call: Call
    kind: str

    group: ClassVar[str | None] = "dispatch"
    over_calls: ClassVar[bool] = True
    finds_functions: ClassVar[bool] = True
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "fastestimator"})

    def values(self) -> Any:
        """Return what the call is given, the same every time."""
        import torch

        if self.call.differentiates:
            x = torch.linspace(-1, 1, 16, requires_grad=True)
            return (x * x).sum(), x, None
        return arrays() if self.kind == "numpy" else [torch.from_numpy(one) for one in arrays()]

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare types, shapes and values."""
        import numpy as np

        assert type(result) is type(expected), f"{type(expected)} became {type(result)}"
        assert result.dtype == expected.dtype, f"{expected.dtype} became {result.dtype}"
        np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-6)


@dataclass(frozen=True)
class TFDispatch(Dispatch):
    """The same with TensorFlow's tensors, outside of a graph."""

    framework: ClassVar[Framework] = "tf"
    baseline: ClassVar[str] = "tf_eager"
    references: ClassVar[tuple[str, ...]] = ("tf_eager",)
    in_turns: ClassVar[bool] = True
    group: ClassVar[str | None] = "tf_dispatch"
    only: ClassVar[frozenset[str] | None] = frozenset({"tf_eager", "fastnet", "fastestimator"})

    def values(self) -> Any:
        """Return what the call is given, the same every time."""
        import tensorflow as tf

        if not self.call.differentiates:
            return [tf.constant(one) for one in arrays()]
        x = tf.linspace(-1.0, 1.0, 16)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            target = tf.reduce_sum(x * x)
        return target, x, tape


WORKLOADS = tuple(
    Dispatch(f"dispatch_{kind}_{call.name}", f"{call.name}, {title}", call, kind)
    for kind, title in (("torch", "tensors"), ("numpy", "numpy arrays"))
    for call in CALLS
    if kind == "torch" or not call.differentiates
)
TF_WORKLOADS = tuple(
    TFDispatch(f"dispatch_tf_{call.name}", f"{call.name}, eager tensors", call, "tf")
    for call in CALLS
)
