"""Collectives of a step as operators, so that compiled steps exchange what eager ones do.

One rank may run a step eagerly while another runs a compiled program: both send the same messages
in the same order.

Torch's functional collectives can be traced as well. But a rank may verify a program in a step in
which other ranks do not, and then runs the step several times. The operators here communicate only
in the first of these runs, and replay in the others the messages that it has received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fastnet.backend.torch._internals import group_of_name

_Tensors = list[Tensor]

# The result of the last operator in a trace, if there is one; None outside of traces.
_traced: ContextVar[_Tensors | None] = ContextVar("traced", default=None)
_messages: ContextVar[Messages | None] = ContextVar("messages", default=None)


@contextmanager
def traced_collectives() -> Iterator[None]:
    """Trace the collectives in this block as operators, chained to keep their order."""
    token = _traced.set([])
    try:
        yield
    finally:
        _traced.reset(token)


def are_traced() -> bool:
    """Return whether the collectives of this thread are traced."""
    return _traced.get() is not None


def average_over(tensor: Tensor, groups: Sequence[Any]) -> Tensor:
    """Return the average of a tensor over the processes of groups, one group after another."""
    names = [group.group_name for group in groups]
    last = _traced.get()
    if last is None:
        return _average(tensor, names, None)
    result: Tensor = torch.ops.fastnet.average(tensor, names, last[-1] if last else None)
    last[:] = [result]
    return result


def broadcast_from_first(tensors: Sequence[Tensor], group: Any) -> _Tensors:
    """Return tensors, at least one, with the values of the first process of a group."""
    last = _traced.get()
    if last is None:
        return _broadcast(tensors, group.group_name, None)
    results: _Tensors = torch.ops.fastnet.broadcast(
        list(tensors), group.group_name, last[-1] if last else None
    )
    last[:] = results[-1:]
    return results


class Messages:
    """Records the messages of a step, so that a process can run the step again by itself.

    Such a run assumes that the other processes send what they sent in the recorded step.

    Attributes:
        sent: The tensors that were sent in the step, or in the last run of it.
    """

    def __init__(self) -> None:
        self.sent: _Tensors = []
        self._is_recording = False
        # The tensors that each collective of the step has sent and received.
        self._recorded: list[tuple[_Tensors, _Tensors]] = []
        self._remaining: Iterator[tuple[_Tensors, _Tensors]] = iter(())

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what the step in this context sends and receives."""
        self._recorded.clear()
        self._is_recording = True
        with self._used():
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Let the step in this context receive what was recorded, and send nothing."""
        self._is_recording = False
        self._remaining = iter(self._recorded)
        with self._used():
            yield

    @contextmanager
    def _used(self) -> Iterator[None]:
        self.sent = []
        token = _messages.set(self)
        try:
            yield
        finally:
            _messages.reset(token)

    def exchange(
        self,
        tensors: Sequence[Tensor],
        communicate: Callable[[], _Tensors],
        repeat: Callable[[_Tensors, _Tensors], _Tensors],
    ) -> _Tensors:
        """Return what a collective receives; see `_exchange`."""
        copies = [tensor.clone() for tensor in tensors]
        self.sent += copies
        if self._is_recording:
            received = communicate()
            self._recorded.append((copies, [tensor.clone() for tensor in received]))
            return received
        sent, received = next(self._remaining, ([], []))
        sent_types = [(tensor.shape, tensor.dtype) for tensor in sent]
        if sent_types != [(tensor.shape, tensor.dtype) for tensor in copies]:
            raise RuntimeError("the step sends other messages to the other processes")
        return repeat(sent, received)


def _exchange(
    tensors: Sequence[Tensor],
    communicate: Callable[[], _Tensors],
    repeat: Callable[[_Tensors, _Tensors], _Tensors],
) -> _Tensors:
    """Return what a collective receives.

    Args:
        tensors: The tensors that this process sends.
        communicate: Exchanges tensors with the other processes; returns those received.
        repeat: Returns the tensors that would be received, given those that were sent and received
            in the recorded run.
    """
    messages = _messages.get()
    return communicate() if messages is None else messages.exchange(tensors, communicate, repeat)


# The last argument only makes each operator depend on the one before it. The processes would wait
# for each other, or mix up messages, if a compiler changed the order.
_library: Any = torch.library.Library("fastnet", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("average(Tensor tensor, str[] groups, Tensor? previous) -> Tensor")
_library.define("broadcast(Tensor[] tensors, str group, Tensor? previous) -> Tensor[]")


@torch.library.impl(_library, "average", "CompositeExplicitAutograd")
def _average(tensor: Tensor, names: Sequence[str], previous: Tensor | None) -> Tensor:
    groups = list(map(group_of_name, names))
    share = 1 / math.prod(map(dist.get_world_size, groups))

    def communicate() -> _Tensors:
        total = tensor * share  # DistributedDataParallel divides before it adds, too.
        for group in groups:
            dist.all_reduce(total, group=group)
        return [total]

    def repeat(sent: _Tensors, received: _Tensors) -> _Tensors:
        change = (tensor - sent[0]) * share
        # A change of infinite values would be NaN.
        return [torch.where(tensor == sent[0], received[0], received[0] + change)]

    (result,) = _exchange([tensor], communicate, repeat)
    return result


@torch.library.impl(_library, "broadcast", "CompositeExplicitAutograd")
def _broadcast(tensors: Sequence[Tensor], name: str, previous: Tensor | None) -> _Tensors:
    group = group_of_name(name)
    source = dist.get_global_rank(group, 0)

    def communicate() -> _Tensors:
        results = [tensor.clone() for tensor in tensors]
        for result in results:
            dist.broadcast(result, source, group=group)
        return results

    def repeat(sent: _Tensors, received: _Tensors) -> _Tensors:
        values = tensors if dist.get_rank() == source else received
        return [value.clone() for value in values]

    return _exchange(tensors, communicate, repeat)


@torch.library.register_fake("fastnet::average", lib=_library)  # type: ignore[untyped-decorator]
def _average_of_fake(tensor: Tensor, groups: Sequence[str], previous: Tensor | None) -> Tensor:
    return torch.empty_like(tensor)


@torch.library.register_fake("fastnet::broadcast", lib=_library)  # type: ignore[untyped-decorator]
def _broadcast_of_fake(tensors: Sequence[Tensor], group: str, previous: Tensor | None) -> _Tensors:
    return [torch.empty_like(tensor) for tensor in tensors]


COLLECTIVES: frozenset[Any] = frozenset(
    (torch.ops.fastnet.average.default, torch.ops.fastnet.broadcast.default)
)
"""The operators that communicate with other processes."""
