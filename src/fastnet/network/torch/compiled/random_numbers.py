"""Random numbers in a trace: which graphs draw them, and what ops must not do with generators.

A program would draw the numbers of torch's default generator in each step, but repeat a number from
another generator, or an item of an iterator, that was drawn during the trace.
"""

from __future__ import annotations

import builtins
import io
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import FunctionType, GeneratorType
from typing import Any, NamedTuple
from weakref import CallableProxyType, ProxyType

import numpy as np
import torch

from fastnet.guards import Snapshot
from fastnet.network.torch.compiled.uncapturable import Uncapturable

_GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
)
# Files on disk, which may be read. Files in memory, such as StringIO, are usually written to.
_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper)
_INSTEAD = "which a program would not do again: draw in the loader, or with torch"
_SEEDED = (
    "the ops seed, fork or restore torch's random state; seed in the loop, and pass "
    "preserve_rng_state=False to checkpoints, with dropout outside of them"
)


class _Source(NamedTuple):
    """The name of a generator, and functions that read, write and advance its state."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    draw: Callable[[], Any]


class Sources:
    """The generators and iterators that a trace might advance: global ones and those of ops."""

    def __init__(self, guard: Snapshot) -> None:
        self._iterators: dict[int, str] = {}
        self._refused: Uncapturable | None = None
        generators: dict[int, tuple[str, Any]] = {
            id(random): ("Python's global generator", random),
            id(np.random): ("numpy's global generator", np.random),
        }
        for path, value, is_used in guard.find(_is_source):
            if _is_random(type(value)):
                generators[id(value)] = path, value
                continue
            if isinstance(value, io.IOBase) and not value.readable():
                continue
            if is_used:  # An item that a trace takes could not be put back.
                raise Uncapturable(f"an op may advance {path}, {_INSTEAD}")
            self._iterators[id(value)] = path
            if isinstance(value, GeneratorType):
                generators[id(value)] = path, value
                for name, local in _locals_of(value).items():
                    if _is_random(type(local)):
                        generators[id(local)] = f"{path} local variable '{name}'", local
        for index, generator in enumerate(torch.cuda.default_generators):
            generators[id(generator)] = f"the generator of CUDA device {index}", generator
        self._sources = [_source_of(path, value) for path, value in generators.values()]
        # All are read before `watched` draws from any: generators may share their state.
        self._states_before = [source.read() for source in self._sources]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the states, and refuse calls of `next` for iterators that ops hold."""
        for source in self._sources:
            # Otherwise seeding a generator as an earlier step has done would not change its state.
            source.draw()
        self._states_at_start = [_comparable(source.read()) for source in self._sources]
        if not self._iterators:
            yield
            return
        patched: Any = builtins
        thread, original_next = threading.get_ident(), builtins.next

        def next_unless_held(iterator: Any, *default: Any) -> Any:
            if id(iterator) in self._iterators and threading.get_ident() == thread:
                path = self._iterators[id(iterator)]
                # The op may catch the error.
                self._refused = Uncapturable(f"an op advances {path}, {_INSTEAD}")
                raise self._refused
            return original_next(iterator, *default)

        patched.next = next_unless_held
        try:
            yield
        finally:
            patched.next = original_next

    def check(self) -> None:
        """Raise if a source has been advanced."""
        if self._refused is not None:
            raise self._refused
        for source, state in zip(self._sources, self._states_at_start, strict=True):
            if _comparable(source.read()) != state:
                raise Uncapturable(f"an op advances {source.name}, {_INSTEAD}")

    def restore(self) -> None:
        """Restore the states of the random number generators."""
        for source, state in zip(self._sources, self._states_before, strict=True):
            source.write(state)


def _is_source(cls: type) -> bool:
    """Return whether objects of a class are generators, or iterators or queues written in C."""
    if issubclass(cls, (*_GENERATORS, GeneratorType, SimpleQueue)) or cls in _FILES:
        return True
    methods = (vars(base)["__next__"] for base in cls.__mro__ if "__next__" in vars(base))
    method = next(methods, None)
    is_iterator = method is not None and type(method) is not FunctionType
    # Proxies have all methods, and files in memory are usually written to.
    return is_iterator and not issubclass(cls, (io.IOBase, ProxyType, CallableProxyType))


def _is_random(cls: type) -> bool:
    """Return whether objects of a class are random number generators whose state can be read."""
    return issubclass(cls, _GENERATORS) and not issubclass(cls, random.SystemRandom)


def _source_of(name: str, value: Any) -> _Source:
    read: Callable[[], Any]
    if value is random:
        return _Source(name, random.getstate, random.setstate, random.random)
    if isinstance(value, random.Random):
        base = random.Random
        read, write = partial(base.getstate, value), partial(base.setstate, value)
        return _Source(name, read, write, partial(base.random, value))
    if value is np.random or isinstance(value, np.random.RandomState):
        read = partial(value.get_state, legacy=False)
        return _Source(name, read, value.set_state, value.random_sample)
    if isinstance(value, torch.Generator):
        draw = partial(torch.rand, (), generator=value, device=value.device)
        return _Source(name, value.get_state, value.set_state, draw)
    if isinstance(value, GeneratorType):
        return _Source(name, partial(_frame_of, value), lambda state: None, lambda: None)
    owner = value.bit_generator if isinstance(value, np.random.Generator) else value
    read, write = partial(getattr, owner, "state"), partial(setattr, owner, "state")
    return _Source(name, read, write, owner.random_raw)


def _locals_of(generator: Any) -> dict[str, Any]:
    return {} if generator.gi_frame is None else dict(generator.gi_frame.f_locals)


def _frame_of(generator: Any) -> Any:
    """Return the position and the variables of a generator; None if it has ended."""
    frame, inner = generator.gi_frame, generator.gi_yieldfrom
    values = [(name, id(value)) for name, value in _locals_of(generator).items()]
    inside = _frame_of(inner) if isinstance(inner, GeneratorType) else id(inner)
    return None if frame is None else (frame.f_lasti, values, inside)


def _comparable(state: Any) -> Any:
    """Return a state with its arrays as bytes."""
    if isinstance(state, dict):
        return {name: _comparable(value) for name, value in state.items()}
    if isinstance(state, (np.ndarray, torch.Tensor)):
        return np.asarray(state).tobytes()
    return state


class RandomState:
    """Stands for torch's default generator during a trace, and notes uses in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._thread = threading.get_ident()
        self._before = generator.get_state()
        self._is_used = self._depends_on_seed = self._has_changed = False

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._thread:
            self._is_used = True
            # A seed would be a constant of the program. `restore` does not notice seeding that sets
            # the state that the generator already has.
            self._depends_on_seed |= name in ("manual_seed", "seed", "initial_seed")
        return getattr(self._generator, name)

    def restore(self) -> None:
        """Restore the state if it was changed in this thread."""
        if self._is_used and not torch.equal(self._before, self._generator.get_state()):
            self._has_changed = True
            self._generator.set_state(self._before)

    def check(self, is_random: bool) -> None:
        """Refuse a step that seeds, or restores the state around random numbers."""
        is_seeded = self._depends_on_seed or self._has_changed
        if is_seeded or (self._is_used and is_random):
            raise Uncapturable(_SEEDED)


@contextmanager
def watched_process() -> Iterator[RandomState]:
    """Watch the uses of torch's generator and of `torch.compile` in this thread."""
    # Functions of `torch.random` look the generator up in their module.
    patched: Any = torch
    thread, original_compile = threading.get_ident(), patched.compile
    generator = patched.random.default_generator
    random_state = RandomState(generator)

    def refuse(*args: Any, **settings: Any) -> Any:
        if threading.get_ident() == thread:
            raise Uncapturable("an op calls torch.compile, as torch.cond does; use torch.where")
        return original_compile(*args, **settings)

    patched.compile = refuse
    patched.random.default_generator = patched.default_generator = random_state
    try:
        yield random_state
    finally:
        patched.compile = original_compile
        patched.random.default_generator = patched.default_generator = generator
        random_state.restore()


def _is_generator(argument: Any) -> bool:
    """Return whether an argument of a node is a generator, or an attribute that is one."""
    if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
        argument = getattr(argument.graph.owning_module, str(argument.target))
    return isinstance(argument, torch.Generator)


def is_random(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers; refuse generators other than the default."""
    if any(map(_is_generator, (*node.args, *node.kwargs.values()))):
        raise Uncapturable(
            "an op draws random numbers from a generator of its own; draw from torch's default one"
        )
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    if str(node.target) == "aten._scaled_dot_product_flash_attention_for_cpu.default":
        return any(node.args[3:4])  # The probability of dropout.
    return True
