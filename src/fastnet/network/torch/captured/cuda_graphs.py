"""Compiled functions replayed as CUDA graphs, which queue all their work by one call.

A graph has in it at which addresses it reads and writes. Parameters, buffers and what optimizers
remember are read and written where they are, and their addresses are compared before each replay;
everything else is copied into tensors of the graph's own, and results are copied out of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

__all__ = ["CudaRecorder", "Graphed", "Recorder", "reason_against", "recorder_of"]

# a graph whose tensors are elsewhere in each step would be recorded in each step
_MOST_RECORDINGS = 8
# whose operations do nothing but to queue work
_KNOWN = frozenset({"aten", "prims", "_operator"})

Call = Callable[[list[Any]], Sequence[Any]]


class Recorder(Protocol):
    """What records, of which there is one for a device.

    Attributes:
        device: The device.
        lock: Held while graphs are recorded and replayed, which share memory.
        failed: Why no graphs are recorded and replayed any more, or None.
    """

    device: torch.device
    lock: Lock
    failed: str | None

    def warm_up(self, call: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Call a function that is going to be recorded: so it makes what it makes only once."""

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        """Record what a function queues, without doing it.

        Returns:
            What does it, and the results, which are written to each time.

        Raises:
            Exception: If it does what cannot be recorded.
        """

    def begin(self) -> None:
        """Have what is queued from now on wait for what was queued by graphs before."""


class _Graph(NamedTuple):
    """What was recorded.

    Attributes:
        replay: Does it.
        results: What it writes to each time.
        buffers: The places of inputs, and the tensors that it reads in their stead.
        addresses: Where its other inputs were.
    """

    replay: Callable[[], None]
    results: Sequence[Any]
    buffers: list[tuple[int, torch.Tensor]]
    addresses: list[int]


class Graphed:
    """A compiled function that is recorded in its second call, and replayed from then on.

    Its first call loads kernels and chooses among them, which cannot be recorded. No call does its
    work twice: recording only takes down what is to be done.

    Args:
        call: The function. It takes a list of tensors, which it may empty.
        fixed: The places of those inputs that are at the same addresses in most calls.
        recorder: Records it.
        told: Called with the reason if it goes on without a graph.

    Attributes:
        recordings: How many times it was recorded.
    """

    def __init__(
        self,
        call: Call,
        fixed: Sequence[int],
        recorder: Recorder,
        told: Callable[[str], None],
    ) -> None:
        self._call = call
        self._fixed = list(fixed)
        self._recorder = recorder
        self._told = told
        self._is_warm = False
        self._left = False
        self._graph: _Graph | None = None
        self.recordings = 0

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the function.

        Args:
            inputs: What it takes.

        Returns:
            What it returns, which is the caller's own.
        """
        recorder = self._recorder
        if self._left or recorder.failed is not None:
            return self._run_without(inputs)
        with recorder.lock:
            if recorder.failed is None:
                found = self._run(inputs)
                if found is not None:
                    return found
        return self._run_without(inputs)

    def _run(self, inputs: list[Any]) -> Sequence[Any] | None:
        """Run the function by a graph, or so that there can be one; None if there is none."""
        recorder = self._recorder
        recorder.begin()
        addresses = [inputs[at].data_ptr() for at in self._fixed]
        graph = self._graph
        if graph is None or graph.addresses != addresses:
            if not self._is_warm:
                self._is_warm = True
                return recorder.warm_up(lambda: self._call(inputs))
            # its memory goes before there is another one
            self._graph = graph = None
            self._graph = graph = self._record(inputs, addresses)
        if graph is None:
            return None
        for at, buffer in graph.buffers:
            buffer.copy_(inputs[at], non_blocking=True)
        graph.replay()
        return [_copied(one) for one in graph.results]

    def _record(self, inputs: list[Any], addresses: list[int]) -> _Graph | None:
        """Record the function; give None if that is not possible."""
        recorder, fixed = self._recorder, set(self._fixed)
        if self.recordings >= _MOST_RECORDINGS:
            self._leave(f"what it reads and writes was elsewhere {_MOST_RECORDINGS} times")
            return None
        self.recordings += 1
        static = [
            one if at in fixed else _like(one, recorder.device) for at, one in enumerate(inputs)
        ]
        # the function may empty the list
        buffers = [(at, one) for at, one in enumerate(static) if at not in fixed]
        try:
            replay, results = recorder.record(lambda: self._call([*static]))
        except BaseException as error:
            # with other graphs nobody knows what has become of the generator that they draw from
            first = str(error).strip().partition("\n")[0]
            recorder.failed = f"recording one has failed with {type(error).__name__}: {first}"
            self._leave(recorder.failed)
            if not isinstance(error, Exception):
                raise
            return None
        return _Graph(replay, results, buffers, addresses)

    def _leave(self, reason: str) -> None:
        self._left = True
        # with it goes the memory that is its own
        self._graph = None
        self._told(reason)

    def _run_without(self, inputs: list[Any]) -> Sequence[Any]:
        if not self._left:
            self._leave(str(self._recorder.failed))
        return self._call(inputs)


class CudaRecorder:
    """Records graphs of a CUDA device, which share their memory.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = Lock()
        self.failed: str | None = None
        self._stream: Any = None
        self._last: Any = None
        self._pool: Any = None
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self) -> None:
        """Have what is queued from now on wait for what was queued by graphs before."""
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream

    def warm_up(self, call: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Call a function on the stream that is recorded: libraries keep memory for each stream."""
        with torch.cuda.device(self.device):
            current = torch.cuda.current_stream()
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                results = call()
            current.wait_stream(self._stream)
            for one in results:
                one.record_stream(current)
        return results

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        """Record what a function queues; it draws random numbers of the device's own generator."""
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream()):
            if not self._graphs:
                # a pool that no graph is left of is gone
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # a loader's threads may go on with what this thread must not do meanwhile
            around = torch.cuda.graph(
                graph, self._pool, self._stream, capture_error_mode="thread_local"
            )
            try:
                with around:
                    results = call()
            except BaseException:
                self._free_generator()
                raise
        self._graphs.add(graph)
        return graph.replay, results

    def _free_generator(self) -> None:
        """Have the generator draw again: a recording that fails can leave it as if recorded."""
        generator = torch.cuda.default_generators[self.device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())


@cache
def recorder_of(device: torch.device) -> Recorder | None:
    """Return what records graphs of a device; None where there are none.

    Args:
        device: The device.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


def reason_against(graph: fx.GraphModule) -> str | None:
    """Return why what was traced is called in each step, and not replayed; None if it can be.

    Args:
        graph: What was traced.
    """
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        target: Any = node.target
        space = getattr(target, "namespace", None) or getattr(target, "__module__", "")
        if space not in _KNOWN:
            return f"the operation {target} is not torch's own, and may do more than queue work"
        if torch.Tag.cudagraph_unsafe in getattr(target, "tags", ()):
            return f"the operation {target} cannot be recorded"
    return None


def _like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, with its strides."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride() or not tensor.numel():
        return copy
    # as much memory as there is of it, in which it may be several times
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in sizes)
    flat = tensor.as_strided((length,), (1,)).clone()
    return flat.as_strided(tensor.shape, tensor.stride())
