"""Batches as containers: nested values, many keys and slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.workloads.workload import Goal, Workload

AXIS = 1


def tensor() -> Any:
    """Return a small tensor that belongs to an autograd graph, as a prediction does."""
    import torch

    return torch.ones(4, requires_grad=True) * 1


@dataclass(frozen=True)
class Nest(Workload):
    """Detach each of 12 tensors, and keep the containers' types."""

    references: ClassVar[tuple[str, ...]] = ("bare", "bare_strict")

    def nest(self) -> dict[str, Any]:
        """Return the nest: 12 tensors in up to four levels of containers."""
        return {
            "image": tensor(),
            "label": tensor(),
            "boxes": [tensor(), tensor(), tensor()],
            "pyramid": (tensor(), tensor(), tensor()),
            "meta": {
                "scale": tensor(),
                "shift": tensor(),
                "masks": {"inner": [tensor()], "outer": (tensor(),)},
            },
        }

    def check(self, expected: Any, result: Any, extra_keys: bool = False) -> None:
        """Compare containers and tensors at every level."""
        from torch.utils._pytree import tree_flatten

        (wanted, shape), (got, found) = tree_flatten(expected), tree_flatten(result)
        assert found == shape, f"{shape} became {found}"
        for other, mine in zip(wanted, got, strict=True):
            self.assert_close(other.detach(), mine.detach(), "tensor")
            assert mine.requires_grad == other.requires_grad


@dataclass(frozen=True)
class DeepNest(Nest):
    """Detach four tensors in a dict inside more and more dicts."""

    references: ClassVar[tuple[str, ...]] = ("bare",)
    group: ClassVar[str | None] = "grow_nesting"
    grows: ClassVar[str | None] = "dicts around four tensors to detach"

    def nest(self) -> dict[str, Any]:
        """Return the nest."""
        nest: dict[str, Any] = {key: tensor() for key in "abcd"}
        for _ in range(self.size):
            nest = {"inner": nest}
        return nest


@dataclass(frozen=True)
class ManyKeys(Workload):
    """An op that reads half of the keys and writes the other half, all of which are returned."""

    group: ClassVar[str | None] = "grow_keys"
    grows: ClassVar[str | None] = "keys, half read and half written"
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "fastestimator"})

    @property
    def inputs(self) -> list[str]:
        """The keys of the batch, which the op reads."""
        return [f"in{number}" for number in range(self.size // 2)]

    @property
    def outputs(self) -> list[str]:
        """The keys that the op writes."""
        return [f"out{number}" for number in range(self.size // 2)]

    def batch(self) -> dict[str, Any]:
        """Return a batch."""
        import torch

        return {key: torch.full((4,), float(index)) for index, key in enumerate(self.inputs)}


@dataclass(frozen=True)
class Slicing(Workload):
    """Slice a (8, `size`, 32) batch along axis 1, run an identity op on each slice, and merge."""

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "fastestimator"})

    def batch(self) -> dict[str, Any]:
        """Return a batch."""
        import torch

        return {"x": torch.arange(8.0 * self.size * 32).reshape(8, self.size, 32)}


@dataclass(frozen=True)
class GrowingSlices(Slicing):
    """The same with more and more slices."""

    group: ClassVar[str | None] = "grow_minibatches"
    grows: ClassVar[str | None] = "minibatches"


WORKLOADS = (
    Nest("nest_detach", "Detach a nest of 12 tensors", goal=Goal(1.15, 2.09)),
    Slicing("slicing_16", "Slice a batch in 16 and merge", size=16),
)
GROWING = (
    *(DeepNest(f"nesting_{depth}", f"{depth} dicts deep", size=depth) for depth in range(7)),
    *(ManyKeys(f"keys_{2**n}", f"{2**n} keys", size=2**n) for n in range(1, 10)),
    *(GrowingSlices(f"slices_{2**n}", f"{2**n} minibatches", size=2**n) for n in range(7)),
)
