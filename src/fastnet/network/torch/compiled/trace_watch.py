"""Watches the ops in a trace, for what their graph would leave out or repeat wrongly."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import fastnet
from fastnet._execute import UNDO
from fastnet.backend.torch._internals import (
    COMMUNICATION,
    DISTRIBUTION_CHECKS,
    TorchDispatchMode,
    checks_by_default,
    is_all_true,
    no_dispatch,
    writes,
)
from fastnet.backend.torch.parallel_update import AVERAGED_BY_UPDATES, REDUCED_BY_DDP
from fastnet.backend.torch.update import TRAINED
from fastnet.errors import is_from_signal_handler
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_limits import MAX_CELLS
from fastnet.network.torch.compiled.input_signature import tensors_in
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.op.tensorop.model.following import FollowsUpdates

# The entries of the step's state that are the same in all steps of a plan, or that each step may
# use, because a program need not repeat it.
_CONSTANT_ENTRIES = frozenset(
    {
        *("mode", "warmup", "req_grad", "eager", "deferred", "tape", TRAINED, UNDO),
        *(REDUCED_BY_DDP, AVERAGED_BY_UPDATES),
    }
)

# These read values, or memory, of a tensor without a call of the dispatcher; two of them crash.
_READ_VALUES = {
    getattr(torch.Tensor, name)
    for name in ("__array__", "__dlpack__", "apply_", "data_ptr", "map_", "map2_", "numpy")
} | {torch.Tensor.tolist, torch.Tensor.storage_offset}
# These read the values of tensors in lists and tuples.
_READ_ITEMS = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
# These read the values of tensors in lists, but not in tuples, which are several indices.
_INDEX = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}

# For which purpose functions look at values, and what to do instead.
_NUMPY = " by numpy; compute with torch, or make a custom operator of it (torch.library.custom_op)"
_ADVICE = {
    "__bool__": " to decide a branch; choose by torch.where, or look at them in the loop",
    "bincount": " to decide how many numbers to count; use one_hot(x, num_classes).sum(0)",
    "ctc_loss": " for its lengths; make a custom operator of it (torch.library.custom_op)",
    "one_hot": " to count the classes; pass num_classes=",
    "repeat_interleave": " to decide how many elements there are; pass output_size=",
    "_pack_padded_sequence": (
        " to pack sequences; run the layer on padded ones, and leave out what it computes from "
        "padding: of the outputs in the loss, and of the last states by output[rows, lengths - 1]"
    ),
    **dict.fromkeys(("numpy", "__array__", "__dlpack__"), _NUMPY),
    **dict.fromkeys(
        ("tensor", "as_tensor", "asarray", "new_tensor"), " in a list; use torch.stack"
    ),
}
# These select elements.
_SELECTIONS = {"__getitem__", "__setitem__", "argwhere", "masked_select", "nonzero", "where"}


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of a trace, without values."""
    return hasattr(tensor, "fake_mode")


class TraceWatch:
    """Knows which op runs, and the first reason why the ops cannot be captured.

    Attributes:
        running: The index of the op that runs; None before the first one.
        refusal: The first reason. It is kept, because an op may catch the error.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.running: int | None = None
        self.refusal: Uncapturable | None = None
        self._plan = plan
        # The error of the first reason, and the name of the function that has raised it.
        self._first_error: Exception | None = None
        self._first_function = ""

    def keep_refusal(self, error: Exception, function: str = "") -> None:
        """Keep an error as the reason why the ops cannot be captured, unless there is one.

        Args:
            error: The error.
            function: The name of the function that has raised it, if it is known.
        """
        if self.refusal is None:
            self._first_error, self._first_function = error, function
            if not isinstance(error, Uncapturable):
                error = Uncapturable(self._describe(error), self.running)
            self.refusal = error

    def refuse_entry(self, key: Any) -> None:
        """Refuse to use an entry of the step's state that may differ in another step."""
        if key in _CONSTANT_ENTRIES:
            return
        entry = "the epoch" if key in (None, "epoch") else f"'{key}' of the state of the step"
        assert self.running is not None
        op = self._plan.describe(self.running)
        error = Uncapturable(f"{op} reads {entry}, which a program would not do again")
        self.keep_refusal(error)
        raise error

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn errors of a trace into `Uncapturable`, and name the op that runs."""
        try:
            yield
        except Uncapturable as error:
            if error.index is None:
                error.index = self.running
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            raise Uncapturable(self._describe(error), self.running) from None

    def _describe(self, error: Exception) -> str:
        """Return where tracing has failed, and how, and what to do instead."""
        users_frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if _is_users_file(frame.filename)
        ]
        op = "" if self.running is None else f"{self._plan.describe(self.running)} "
        line = ""
        if users_frames:
            file = users_frames[-1].filename.rpartition("/")[2]
            line = f"in line {users_frames[-1].lineno} of {file} "
        subject = f"{op}{line}" or "an op "

        first_line = str(error).strip().partition("\n")[0]
        if is_data_dependent(error) or "data_depend" in first_line:
            return f"{subject}looks at the values of tensors{self._advise(error)}"
        return f"{subject}could not be traced: {type(error).__name__}: {first_line}"

    def _advise(self, error: Exception) -> str:
        """Return for which purpose values were looked at, and what to do instead."""
        codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
        if "_detect_is_causal_mask" in {code.co_name for code in codes}:
            return _advice_on_mask(codes)
        if not codes.isdisjoint(DISTRIBUTION_CHECKS):
            return " to check them; pass validate_args=False to the distribution"
        return _advice_on_values(error, self._first_function if error is self._first_error else "")


def _advice_on_mask(codes: Container[CodeType]) -> str:
    """Return how to keep a layer from checking whether a mask is causal."""
    argument, layer = _causal_argument(codes)
    advice = (
        f" of a mask; pass {argument}=True to the {layer} if the mask is causal, and False if not"
    )
    if layer == "nn.Transformer":
        second_argument = "src_is_causal" if argument == "tgt_is_causal" else "tgt_is_causal"
        advice += f"; and {second_argument} likewise, if that mask is given, too"
    return advice


def _advice_on_values(error: Exception, function: str) -> str:
    """Return for which purpose a function looks at values, and what to do instead.

    Args:
        error: The error that it has raised.
        function: Its name, if it is known.
    """
    if function in _ADVICE:
        return _ADVICE[function]
    if function in ("__getitem__", "__setitem__"):
        if isinstance(error, DataDependentError):
            return (
                " in a list of indices, which is taken as a tuple; index with tensors of one axis, "
                "as by x[i[None], j[None]]"
            )
        if "DynamicOutputShape" not in type(error).__name__:
            return (
                " as an index or a length; index with a tensor of one axis, as by index[None], and "
                "in place of a slice use torch.where(mask, values, 0)"
            )
    if "DynamicOutputShape" in type(error).__name__:
        if function in _SELECTIONS:
            return (
                " to decide how many elements there are; compute with all of them, and leave out "
                "by torch.where(mask, values, 0), or -inf before a softmax or a maximum"
            )
        return " to decide how many elements there are, and runs eagerly"
    return "; compute with the tensor itself, or read its value in the loop"


def _causal_argument(codes: Container[CodeType]) -> tuple[str, str]:
    """Return the argument that says whether a mask is causal, and the layer that takes it.

    Args:
        codes: The code of the functions in which the mask was looked at.
    """
    is_of_target = nn.TransformerDecoder.forward.__code__ in codes
    if nn.Transformer.forward.__code__ in codes:
        return "tgt_is_causal" if is_of_target else "src_is_causal", "nn.Transformer"
    if is_of_target:
        return "tgt_is_causal", "nn.TransformerDecoder"
    return "is_causal", "nn.TransformerEncoder"


def _is_users_file(path: str) -> bool:
    """Return whether a file is neither torch's nor fastnet's."""
    folders = (os.path.dirname(torch.__file__), os.path.dirname(fastnet.__file__))
    return not path.startswith(folders) and not path.endswith(".pyx")


# --- values of tensors ----------------------------------------------------------------------------


class DataDependentError(RuntimeError):
    """Raised where an op reads the values of a tensor."""


def is_data_dependent(error: Exception) -> bool:
    """Return whether an error says that the values of tensors were needed."""
    name = type(error).__name__
    return "DataDependent" in name or "DynamicOutputShape" in name


class RefusedFunctions(TorchFunctionMode):
    """Refuses functions that read values without a call of the dispatcher, or trace wrongly."""

    def __init__(self, watch: TraceWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, or raise an error, which the op may catch."""
        try:
            if _reads_values(func, args, kwargs):
                raise DataDependentError(func.__name__)
            if func is is_all_true and _is_default_check(sys._getframe(1)):
                return True  # Only eager steps check the values.
            if func is torch.nn.functional.multilabel_margin_loss:
                # Torch's decomposition also counts what a target has after its first -1.
                raise Uncapturable("torch decomposes multilabel_margin_loss to another function")
            if func in _UNROLLED and isinstance(sys._getframe(1).f_locals.get("self"), nn.RNNBase):
                _check_unrolled(sys._getframe(1).f_locals["self"], args[0], args[1])
            if func is torch.Tensor.dim and _drops_padding(sys._getframe(1)):
                # A trace would not leave padding out, because this mode disables the fast path.
                raise Uncapturable(
                    "an nn.TransformerEncoder leaves out the padding in evaluation mode; pass "
                    "enable_nested_tensor=False to it, or call "
                    "torch.backends.mha.set_fastpath_enabled(False)"
                )
            return func(*args, **(kwargs or {}))
        except Exception as error:
            if isinstance(error, Uncapturable) or is_data_dependent(error):
                self._watch.keep_refusal(error, getattr(func, "__name__", ""))
            raise


# Called with a sequence and its first state, or with a packed sequence and its batch sizes.
_UNROLLED = {torch.gru, torch.rnn_relu, torch.rnn_tanh}


def _check_unrolled(
    layer: nn.RNNBase, data: torch.Tensor, state_or_batch_sizes: torch.Tensor
) -> None:
    """Refuse a recurrent layer of which a program would have too many cells."""
    if data.device.type != "cpu":
        return
    if state_or_batch_sizes.dtype == torch.int64:  # The sequence is packed.
        length = int(state_or_batch_sizes.shape[0])
    else:
        length = int(data.shape[1 if layer.batch_first else 0])
    cells = length * layer.num_layers * (2 if layer.bidirectional else 1)
    if cells > MAX_CELLS:
        raise Uncapturable(
            f"{layer} runs over {length} steps, and a program has a copy of its operations "
            f"for each step and layer, of which at most {MAX_CELLS} are compiled; use an nn.LSTM, "
            "which is one operation, or make a custom operator of the layer "
            "(torch.library.custom_op)"
        )


def _is_default_check(frame: FrameType) -> bool:
    """Return whether a frame checks values of a distribution only because this is the default."""
    return frame.f_code in DISTRIBUTION_CHECKS and checks_by_default(frame.f_locals["self"])


def _drops_padding(frame: FrameType) -> bool:
    """Return whether a frame is that of an encoder whose layers run on nested tensors next.

    Its outputs are then 0 at padding, if all of that is on the right.
    """
    if frame.f_code is not nn.TransformerEncoder.forward.__code__:
        return False
    variables = frame.f_locals
    layer: nn.Module = variables["self"].layers[0]
    needs_gradients = any(parameter.requires_grad for parameter in layer.parameters())
    return (
        variables["src_key_padding_mask"] is not None
        and variables["mask"] is None
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and needs_gradients)
    )


def _reads_values(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Return whether a function reads values, or memory, without a call of the dispatcher."""
    if func in _READ_VALUES:
        return True
    if func is torch.Tensor.__repr__:
        return not is_fake(args[0])
    if func in _READ_ITEMS:
        return any(map(_lists_tensors, [*args, *(kwargs or {}).values()]))
    if func in _INDEX:
        indices = args[1] if isinstance(args[1], tuple) else args[1:2]
        return any(map(_lists_tensors, [*indices, *args[2:]]))
    return False


def _lists_tensors(value: Any) -> bool:
    """Return whether a value is a list or tuple with tensors, also in lists and tuples inside."""
    return isinstance(value, (list, tuple)) and any(
        isinstance(item, torch.Tensor) or _lists_tensors(item) for item in value
    )


_DispatchMode: Any = TorchDispatchMode


class RealTensorWatch(_DispatchMode):  # type: ignore[misc]
    """Watches the tensors with values that ops hold: their values are neither read nor lost.

    An operation that writes to such a tensor does so in a trace, too, and not only in the graph.
    One that communicates is refused: the other processes may not run this trace.
    """

    def __init__(self, watch: TraceWatch) -> None:
        super().__init__()
        self._watch = watch
        # The tensors that were written to, with copies of their values before, by id.
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation."""
        if func.namespace in COMMUNICATION:
            error = Uncapturable(
                f"an op communicates with other processes, by {func}; do so in the loop",
                self._watch.running,
            )
            self._watch.keep_refusal(error)
            raise error
        reads = torch.Tag.data_dependent_output in func.tags
        if reads or writes(func):
            for tensor in tensors_in([list(args), dict(kwargs or {})]):
                if is_fake(tensor):
                    continue
                if reads:
                    raise Uncapturable(f"an op looks at the values of a tensor, by {func}")
                if id(tensor) not in self._saved:
                    with no_dispatch():
                        self._saved[id(tensor)] = tensor, tensor.detach().clone()
        return func(*args, **(kwargs or {}))

    def restore(self) -> None:
        """Restore the values of the tensors that were written to."""
        with torch.no_grad():
            for tensor, values in self._saved.values():
                tensor.copy_(values)
        self._saved.clear()


# --- entries that ops read ------------------------------------------------------------------------

# The methods of a dict that use one key, and those that use all of them.
_ONE_KEY_METHODS = (
    "__contains__",
    "__delitem__",
    "__getitem__",
    "__setitem__",
    "get",
    "pop",
    "setdefault",
)
_ALL_KEYS_METHODS = (
    *("__eq__", "__ior__", "__iter__", "__len__", "__or__", "__ror__", "clear", "copy", "items"),
    *("keys", "popitem", "update", "values"),
)


class WatchedDict(dict[Any, Any]):
    """A dict that calls `on_use`, which may raise, before its methods, but not before `repr`.

    It is called with the key that a method uses, or with None for methods that use all keys.
    """

    def __init__(self, entries: dict[Any, Any], on_use: Callable[[Any], None]) -> None:
        super().__init__(entries)
        self._on_use = on_use

    def as_dict(self) -> dict[Any, Any]:
        """Return a plain dict of the entries."""
        return dict(dict.items(self))


def _watched(name: str, has_key: bool) -> Callable[..., Any]:
    method = getattr(dict, name)

    def watched(self: Any, *args: Any, **keyword_arguments: Any) -> Any:
        self._on_use(args[0] if has_key else None)
        return method(self, *args, **keyword_arguments)

    return watched


for _name in (*_ONE_KEY_METHODS, *_ALL_KEYS_METHODS):
    setattr(WatchedDict, _name, _watched(_name, _name in _ONE_KEY_METHODS))


# --- followers ------------------------------------------------------------------------------------


@contextmanager
def noted_followers(plan: ExecutionPlan) -> Iterator[list[FollowsUpdates]]:
    """Note which ops would step schedulers or count updates in a trace, and let none do so."""
    followers: list[FollowsUpdates] = []
    with ExitStack() as stack:
        for op in plan.ops:
            if isinstance(op, FollowsUpdates):
                attributes = vars(op)
                if "advance" in attributes:
                    stack.callback(attributes.__setitem__, "advance", attributes["advance"])
                else:
                    stack.callback(attributes.pop, "advance")
                attributes["advance"] = partial(followers.append, op)
        yield followers
