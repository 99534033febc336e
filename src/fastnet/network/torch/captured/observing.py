"""What the program's own code reads and calls while its ops are traced."""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from fastnet._calls import Calls
from fastnet.backend.packages import is_installed
from fastnet.network.base import BaseNetwork

__all__ = ["Observer", "Ran", "Uncapturable", "code_told"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FASTNET = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) + os.sep
_NUMPY = os.path.dirname(np.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
# goes on with generators, or is called when an object happens to go
_PASSED_OVER = (f"{os.sep}contextlib.py", f"{os.sep}weakref.py", "_weakrefset.py")
_LOGGING = f"{os.sep}logging{os.sep}__init__.py"
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
# what torch itself is built on, which runs when it traces
_OF_TORCH = frozenset(
    {"typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec", "yaml"}
    | {"setuptools", "triton", "optree", "markupsafe", "packaging"}
)

# what gives the same for the same, and leaves nothing behind but in what is compared anyway
_PURE = frozenset(
    {"abs", "all", "any", "ascii", "bin", "bool", "callable", "chr", "delattr", "divmod", "format"}
    | {
        "getattr",
        "hasattr",
        "hash",
        "hex",
        "id",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "locals",
    }
    | {"max", "min", "oct", "ord", "pow", "repr", "round", "setattr", "sorted", "sum", "vars"}
    | {"__build_class__"}
)
_OF_SYS = frozenset({"getrecursionlimit", "intern"})
_MODULES = frozenset(
    {"math", "cmath", "_operator", "_functools", "itertools", "_collections_abc", "_abc"}
    | {"_typing", "_struct", "_bisect", "_heapq"}
)
_VALUES: tuple[type, ...] = (
    *(str, bytes, bytearray, int, float, complex, bool, list, tuple, dict, set, frozenset),
    *(range, slice, type(None), type(vars(object)), type({}.keys()), type({}.items())),
    type({}.values()),
)


# which give values, or memory, of a tensor that has some, and do not pass the dispatcher
_OF_TENSORS = frozenset({"tolist", "numpy", "data_ptr", "untyped_storage", "__array__"})

_FUNCTIONAL = torch.nn.functional.__file__
_BY_C = vars(torch.nn.functional)
_UNSET: Any = object()
_IMPORT = importlib.import_module.__code__
_OF_NETWORKS = frozenset(one.__code__ for one in (BaseNetwork.run_step, BaseNetwork.transform))
_READ_ENVIRONMENT = type(os.environ).__getitem__.__code__


class Uncapturable(Exception):
    """Steps cannot be captured, and its text says why.

    Args:
        reason: The text.
        index: The index of the op that cannot be captured, None where it is not known.
    """

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index


@contextmanager
def code_told(see: Callable[[CodeType], bool]) -> Iterator[None]:
    """Tell of the code that runs in this thread; nobody else may look on.

    Args:
        see: Called with code that is about to run. Returns whether once is enough for it.
    """
    calls = Calls(lambda frame, code, by_c: see(code), lambda code: True, [])
    # what a backward pass calls is called in this thread
    with torch.autograd.set_multithreading_enabled(False):
        calls.watch()
        try:
            yield
        finally:
            sys.setprofile(None)


class Ran:
    """What code runs in a step, in this thread."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def __contains__(self, code: CodeType) -> bool:
        """Return whether code has run."""
        return code in self._codes

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on, unless somebody else does."""
        with nullcontext() if sys.getprofile() is not None else code_told(self._see):
            yield

    def _see(self, code: CodeType) -> bool:
        self._codes.add(code)
        return True


class Observer:
    """Sees what code runs while ops are traced, in this thread.

    Args:
        text_of_sizes: The code that makes text of a size that is open, which text cannot be.
        cached: The code of functions whose results a program caches.

    Attributes:
        reason: What the first call was that a captured step would not make again, or None.
        functions: The names of the functions of `torch.nn.functional` that have run.
        variables: The context variables that the program's own code has used, with their values
            before.
    """

    def __init__(self, text_of_sizes: CodeType, cached: Collection[CodeType] = ()) -> None:
        self._text_of_sizes = text_of_sizes
        self._cached = cached
        self.reason: str | None = None
        self.functions: set[str] = set()
        self.variables: dict[ContextVar[Any], Any] = {}
        # of the program's own code the table of its globals
        self._codes: dict[CodeType, dict[str, Any]] = {}
        self._kinds: dict[CodeType, str] = {}
        # what asks it to look on, which may itself run because a program is imported
        self._below: FrameType | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while ops are traced.

        Raises:
            Uncapturable: If somebody else does.
        """
        before = sys.getprofile()
        if before is not None:
            raise Uncapturable("a profiler of Python was on when they were to be traced")
        # held here: Python itself lets go of it when it raises
        calls = Calls(self._see, self._is_quiet, _by_c())
        # what happens to be called when objects go is none of the step's doing
        collects = gc.isenabled()
        gc.disable()
        self._below = sys._getframe(2)  # the first is this one, the second contextlib's
        calls.watch()
        try:
            yield
        finally:
            sys.setprofile(before)
            self._below = None
            if collects:
                gc.enable()

    def has_run(self, code: CodeType) -> bool:
        """Return whether code has run, be it whose it may."""
        return code in self._kinds

    def seen(self) -> Iterator[CodeType]:
        """Go through all code that has run, be it whose it may."""
        yield from self._kinds

    def codes(self) -> Iterator[tuple[CodeType, dict[str, Any]]]:
        """Go through the program's own code that has run.

        Yields:
            The code, and the table of its globals.
        """
        yield from self._codes.items()

    def first_changed(self) -> str | None:
        """Name a context variable that is not as it was; None if all are."""
        for variable, value in self.variables.items():
            if variable.get(_UNSET) is not value:
                return variable.name
        return None

    def put_back(self) -> None:
        """Put back the values of context variables, where there were some."""
        for variable, value in self.variables.items():
            if value is not _UNSET:
                variable.set(value)

    def _see(self, frame: FrameType, called: Any, by_c: bool) -> bool:
        """Look at a call, and return whether that was enough for all calls of the same."""
        return self._see_function(frame, called) if by_c else self._see_code(frame, called)

    def _see_code(self, frame: FrameType, code: CodeType) -> bool:
        kind = self._kind(code)
        if kind == "own":
            if self._is_imported(frame):
                return False  # a module, or what somebody has put into Python's way to import one
            if code in self._cached:
                # before a tensor without values gets into the cache
                self._refuse(frame, "works out what a cache is to keep")
            self._codes.setdefault(code, frame.f_globals)
        elif kind == "numpy":
            if self._is_own(frame.f_back):
                # what finds out which arrays a function is given runs before the function itself
                name = code.co_name.removesuffix("_dispatcher").lstrip("_")
                self._refuse(frame.f_back, f"calls numpy's {name}")
            return False
        elif code.co_filename == _FUNCTIONAL:
            self.functions.add(code.co_name)
        elif code is self._text_of_sizes:
            if self._is_own(frame.f_back):
                self._refuse(frame.f_back, "makes text of a size")
            return False
        elif code is _READ_ENVIRONMENT:
            if self._is_own(frame.f_back):
                self._refuse(frame.f_back, "reads os.environ")
            return False
        elif code in _OF_NETWORKS:
            self._refuse(frame.f_back, f"calls {code.co_name} of a network")
        elif code is _IMPORT:
            if self._is_own(frame.f_back):
                self._refuse(frame.f_back, "calls importlib.import_module")
            return False
        return True

    def _see_function(self, frame: FrameType, called: Any) -> bool:
        if _BY_C.get(getattr(called, "__name__", ""), _BY_C) is called:
            self.functions.add(called.__name__)
            return True
        if not _is_pure(called):
            if self._is_own(frame):
                owner = getattr(called, "__self__", None)
                if isinstance(owner, ContextVar):
                    self.variables.setdefault(owner, owner.get(_UNSET))
                else:
                    self._refuse(frame, f"calls {_name_of(called)}")
            return False
        # a method is another one for each object
        return isinstance(getattr(called, "__self__", None), ModuleType)

    def _is_quiet(self, code: CodeType) -> bool:
        """Return whether what some code calls is never the doing of the program's own."""
        kind = self._kind(code)
        return kind != "own" and (kind != "python" or code.co_filename.endswith(_PASSED_OVER))

    def _is_own(self, frame: FrameType | None) -> bool:
        """Return whether code is the program's, or Python's own that the program's has called."""
        while frame is not None:
            kind = self._kind(frame.f_code)
            if kind != "python":
                return kind == "own"
            if frame.f_code.co_filename.endswith(_PASSED_OVER):
                return False
            frame = frame.f_back
        return False

    def _is_imported(self, frame: FrameType | None) -> bool:
        """Return whether code runs because something is imported while ops are traced."""
        while frame is not None and frame is not self._below:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def _kind(self, code: CodeType) -> str:
        kind = self._kinds.get(code)
        if kind is None:
            kind = _kind_of(code.co_filename)
            name = code.co_name
            if code.co_filename == "<string>" and name.startswith("__") and name.endswith("__"):
                kind = "python"  # of a dataclass, or a tuple with names
            self._kinds[code] = kind
        return kind

    def _refuse(self, frame: FrameType | None, what: str) -> None:
        if self._is_imported(frame):
            return  # none of the step's doing
        at = frame
        while at is not None:
            if at.f_code.co_filename.endswith(_LOGGING) and not self._is_own(at):
                return  # nor where torch's own log goes
            at = at.f_back
        while frame is not None and self._kind(frame.f_code) != "own":
            frame = frame.f_back
        self.reason = f"{place_of(frame)} {what}, which a captured step would not do again"
        # before it is called, so that it leaves nothing behind
        raise Uncapturable(self.reason)


def _by_c() -> list[Any]:
    """List the functions of `torch.nn.functional` that are C's."""
    return [
        one
        for name, one in _BY_C.items()
        if isinstance(one, BuiltinFunctionType) and one.__name__ == name
    ]


def place_of(frame: FrameType | None) -> str:
    """Name a line of the program's own code.

    Args:
        frame: Where it is, None where that is not known.
    """
    if frame is None:
        return "it"
    return f"line {frame.f_lineno} of {os.path.basename(frame.f_code.co_filename)}"


@functools.lru_cache(maxsize=4096)
def _kind_of(filename: str) -> str:
    if filename.startswith((_TORCH, _FASTNET)):
        return "library"
    if filename.startswith(_NUMPY):
        return "numpy"
    for part in _PACKAGES:
        package = filename.rpartition(part)[2].partition(os.sep)[0].removesuffix(".py")
        if part in filename and package in _OF_TORCH:
            return "library"
    if filename.startswith("<frozen") or (
        filename.startswith(_PYTHON) and not is_installed(filename)
    ):
        return "python"
    return "own"


def is_own_file(filename: str) -> bool:
    """Return whether a file is of the program's own code, or a package that it uses.

    Args:
        filename: The file.
    """
    return _kind_of(filename) == "own"


def is_library_file(filename: str) -> bool:
    """Return whether a file is of torch, or of this package.

    Args:
        filename: The file.
    """
    return _kind_of(filename) == "library"


def _is_pure(called: Any) -> bool:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, torch.Tensor) and called.__name__ in _OF_TENSORS:
        return False
    if owner is None or isinstance(owner, ModuleType):
        module = getattr(called, "__module__", None) or ""
        if module == "builtins" or owner is builtins:
            return called.__name__ in _PURE or called is builtins.__import__
        if owner is None and not module:
            # a method that was looked up on its class
            owner = getattr(called, "__objclass__", None)
            return owner is not None and _is_of_value(owner)
        if module == "sys":
            return called.__name__ in _OF_SYS
        return module.startswith("torch") or module in _MODULES
    return _is_of_value(owner if isinstance(owner, type) else type(owner))


def _is_of_value(cls: type) -> bool:
    module = cls.__module__ or ""
    return issubclass(cls, _VALUES) or module.startswith("torch") or module in ("_abc", "functools")


def _name_of(called: Any) -> str:
    owner = getattr(called, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        module = getattr(called, "__module__", None)
        name = getattr(called, "__name__", repr(called))
        return name if module in (None, "builtins") else f"{module}.{name}"
    cls = owner if isinstance(owner, type) else type(owner)
    return f"{cls.__name__}.{called.__name__}"


def random_states() -> tuple[Any, Any]:
    """Return where Python's and numpy's generators are."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


def torch_states(device: torch.device) -> list[torch.Tensor]:
    """Return where torch's generators are: that of the CPU, and that of another device.

    Args:
        device: The device.
    """
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state(device)] if device.type == "cuda" else found


def put_torch_states(states: list[torch.Tensor], device: torch.device) -> None:
    """Put torch's generators back to where they were.

    Args:
        states: What `torch_states` gave.
        device: The device.
    """
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
