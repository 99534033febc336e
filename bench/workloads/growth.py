"""How the cost around ops grows: with ops, with nesting, with keys, with minibatches.

The workloads of a group differ in one number only. None has a goal: what matters is the slope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.identity_chain import IdentityChain
from bench.workloads.nest import Nest, tensor
from bench.workloads.slicing import Slicing
from bench.workloads.tf_workload import TFWorkload
from bench.workloads.torch_workload import TorchWorkload

if TYPE_CHECKING:
    import tensorflow as tf
    import torch

_LOOPS = frozenset({"bare", "bare_strict", "fastnet", "fastestimator", "tensordict"})
_WALKS = frozenset(
    {"bare", "fastnet", "fastestimator", "fabric", "ignite", "accelerate", "optree", "pytree"}
)


@dataclass(frozen=True)
class GrowingChain(IdentityChain):
    """A step through more and more ops that do nothing."""

    group: ClassVar[str | None] = "grow_ops"
    grows: ClassVar[str | None] = "ops"
    only: ClassVar[frozenset[str] | None] = _LOOPS

    @property
    def size(self) -> int:
        """How many ops."""
        return self.length


@dataclass(frozen=True)
class DeepNest(Nest):
    """Detach four tensors that lie in a dict, inside of more and more dicts.

    Attributes:
        depth: How many dicts stand around the innermost.
    """

    depth: int = 0

    group: ClassVar[str | None] = "grow_nesting"
    grows: ClassVar[str | None] = "dicts around four tensors to detach"
    only: ClassVar[frozenset[str] | None] = _WALKS
    references: ClassVar[tuple[str, ...]] = ("bare",)

    @property
    def size(self) -> int:
        """How many dicts stand around the innermost."""
        return self.depth

    def nest(self) -> dict[str, Any]:
        """Return the nest."""
        nest: dict[str, Any] = {key: tensor() for key in "abcd"}
        for _ in range(self.depth):
            nest = {"inner": nest}
        return nest


@dataclass(frozen=True)
class Fused(TorchWorkload):
    """A step of an op that does nothing, in a Fuse in a Fuse in a Fuse.

    Attributes:
        depth: How many meta ops stand around the op.
    """

    depth: int

    group: ClassVar[str | None] = "grow_fuse"
    grows: ClassVar[str | None] = "meta ops around an op"
    only: ClassVar[frozenset[str] | None] = _LOOPS - {"bare_strict"}

    @property
    def size(self) -> int:
        """How many meta ops stand around the op."""
        return self.depth

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        import torch

        return {"k0": torch.ones(8, 16)}


@dataclass(frozen=True)
class ManyKeys(TorchWorkload):
    """A step of an op that reads half of the keys and writes the others, which are all returned.

    Attributes:
        keys: How many keys there are, the batch's and the op's.
    """

    keys: int

    group: ClassVar[str | None] = "grow_keys"
    grows: ClassVar[str | None] = "keys, half read and half written"
    only: ClassVar[frozenset[str] | None] = _LOOPS - {"bare_strict"}

    @property
    def size(self) -> int:
        """How many keys."""
        return self.keys

    @property
    def inputs(self) -> list[str]:
        """The keys of the batch, which the op reads."""
        return [f"in{number}" for number in range(self.keys // 2)]

    @property
    def outputs(self) -> list[str]:
        """The keys that the op writes."""
        return [f"out{number}" for number in range(self.keys // 2)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        import torch

        return {key: torch.full((4,), float(place)) for place, key in enumerate(self.inputs)}


@dataclass(frozen=True)
class GrowingSlices(Slicing):
    """A step over a batch that is cut into more and more slices."""

    group: ClassVar[str | None] = "grow_minibatches"
    grows: ClassVar[str | None] = "minibatches"
    only: ClassVar[frozenset[str] | None] = _LOOPS - {"bare_strict"}

    @property
    def size(self) -> int:
        """How many slices."""
        return self.slices


@dataclass(frozen=True)
class TFGrowingChain(TFWorkload):
    """In TensorFlow, traced: a step through more and more ops that each add one.

    Attributes:
        length: How many ops.
    """

    length: int

    group: ClassVar[str | None] = "tf_grow_ops"
    grows: ClassVar[str | None] = "ops"
    only: ClassVar[frozenset[str] | None] = frozenset(
        {"tf_concrete", "fastnet", "fastestimator", "tf_function"}
    )

    @property
    def size(self) -> int:
        """How many ops."""
        return self.length

    @property
    def keys(self) -> list[str]:
        """The keys along the chain: the first is the batch's, the last is wanted."""
        return [f"k{index}" for index in range(self.length + 1)]

    def batch(self) -> dict[str, tf.Tensor]:
        """Return a batch."""
        import tensorflow as tf

        return {"k0": tf.ones((8, 16))}


def _named(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


WORKLOADS = (
    *(
        GrowingChain(f"ops_{count}", _named(count, "op", "ops"), count)
        for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    ),
    *(
        DeepNest(
            f"nesting_{depth}", f"{_named(depth, 'dict', 'dicts')} deep", "detach", None, depth
        )
        for depth in range(7)
    ),
    *(Fused(f"fuse_{depth}", f"Fuse, {depth} deep", depth) for depth in range(7)),
    *(
        ManyKeys(f"keys_{count}", f"{count} keys", count)
        for count in (2, 4, 8, 16, 32, 64, 128, 256, 512)
    ),
    *(
        GrowingSlices(f"slices_{count}", _named(count, "minibatch", "minibatches"), count)
        for count in (1, 2, 4, 8, 16, 32, 64)
    ),
    *(
        TFGrowingChain(f"tf_ops_{count}", _named(count, "op", "ops"), count)
        for count in (1, 3, 10, 30, 100)
    ),
)
