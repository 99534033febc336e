"""Every name of torch that is not part of its public API, and what is done where it is gone.

The rest of fastnet takes from here what these names stand for. None of them is needed: with
``FASTNET_PUBLIC_ONLY=1`` in the environment, or in a version of torch that has no such name or
another thing under it, results are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from os import environ
from os.path import dirname
from threading import Lock
from types import CodeType
from typing import Any, NamedTuple

import torch

from fastnet.backend.private_names import PUBLIC_ONLY, look_up, read

__all__ = [
    "COMPILED",
    "OF_MODULES",
    "OVERWRITTEN",
    "PARTS",
    "Tools",
    "environment",
    "grad_hooks",
    "hook_tables",
    "is_bare_zero_grad",
    "is_torchs",
    "module_hook_tables",
    "note_step",
    "optimizer_hooks",
    "parameter_count_of",
    "parts_of",
    "places_of",
    "profiler_is_on",
    "put_versions",
    "reduces_in_another_type",
    "run_backward",
    "scaler_records",
    "scaler_tensors",
    "scheduler_has_wrapped",
    "set_grad_enabled",
    "tables_of",
    "tools",
    "transforms_are_active",
    "versions_in",
]


def _sets_grad_mode(function: Any) -> bool:
    before = torch.is_grad_enabled()
    try:
        function(not before)
        return torch.is_grad_enabled() is not before
    finally:
        torch.set_grad_enabled(before)


set_grad_enabled: Callable[[bool], object] = (
    look_up("torch._C._set_grad_enabled", _sets_grad_mode) or torch.set_grad_enabled
)
"""Sets whether operations are recorded in this thread.

Saves the Python of `torch.set_grad_enabled`, twice in each step that takes no gradients: 0.3
microseconds in place of 1.2.
"""


def _is_engine(function: Any) -> bool:
    # Refused because of its counts, once all other arguments have been taken. To walk a graph here
    # would start the engine's threads.
    try:
        function((1,), (), False, False, (), allow_unreachable=True, accumulate_grad=True)
    except RuntimeError:
        return True
    return False


def _tells(function: Any) -> bool:
    return isinstance(function(), bool)


transforms_are_active: Callable[[], bool] = look_up(
    "torch._C._are_functorch_transforms_active", _tells
) or (lambda: True)
"""Tells whether a transform of `torch.func` is under way, which `run_backward` knows nothing of.

Where it cannot be told there may always be one, and torch's own functions are called.
"""

run_backward: Callable[..., Any] | None = look_up(
    "torch.autograd.Variable._execution_engine.run_backward", _is_engine
)
"""Autograd's engine, or None.

`Tensor.backward` and `torch.autograd.grad` call it after some twenty microseconds of Python, which
these do instead where it is None.
"""

profiler_is_on: Callable[[], bool] = look_up("torch.autograd._profiler_enabled", _tells) or (
    lambda: True
)
"""Tells whether a profiler of torch is on in this thread.

Saves the ranges around ops in steps that are measured while none is. Where it cannot be told they
are always there, which only costs time.
"""


def is_torchs(function: Any) -> bool:
    """Return whether a function is torch's own, and not one that was put in its place.

    Args:
        function: What is found under a name of torch.
    """
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(dirname(torch.__file__))


# what an optimizer class has that overrides nothing, as long as nobody patches it
_zero_grad: Any = torch.optim.Optimizer.zero_grad
_is_known = not PUBLIC_ONLY and is_torchs(_zero_grad)


def is_bare_zero_grad(zero_grad: Any) -> bool:
    """Return whether an optimizer's `zero_grad` does nothing but drop gradients.

    Torch's own does that inside of a profiler range, which costs more than the work: 24
    microseconds in place of 1 for a model of four parameters. Where this is False it is called.

    Args:
        zero_grad: The attribute of the optimizer. One that a class derived from torch's defines,
            or that was patched on the class or the instance, may do anything.
    """
    return _is_known and getattr(zero_grad, "__func__", None) is _zero_grad


PARTS = "_modules"
"""Under which name a module has the table of its parts, which another one can take the place of.

It is compared in 0.1 microseconds, where `Module.children` takes 2.6 for three parts: that counts
in each step of a model of many modules (`many_modules` in bench).
"""


def parts_of(module: torch.nn.Module) -> dict[str, torch.nn.Module | None] | None:
    """Return the table of the parts that a module has; None where torch's cannot be had.

    Args:
        module: The module.
    """
    parts = None if PUBLIC_ONLY else vars(module).get(PARTS)
    return parts if isinstance(parts, dict) else None


def places_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor | None]]:
    """List the parameters and buffers of a module itself, by name.

    Args:
        module: The module.

    Returns:
        The tensors; where torch's tables can be had, also the names that have none yet, which the
        public lists leave out.
    """
    tables = read(module, "_parameters"), read(module, "_buffers")
    if all(hasattr(table, "items") for table in tables):
        return [pair for table in tables for pair in table.items()]
    named: Any = (module.named_parameters, module.named_buffers)
    return [pair for one in named for pair in one(recurse=False, remove_duplicate=False)]


COMPILED = "_orig_mod"
"""Under which name a model from `torch.compile` has the model that was compiled.

Weights are saved and loaded by the names that the model itself has for them. There is no public way
to it: with another name weights are saved and loaded as the compiled model names them, and those
of a plain model are refused with a list of names.
"""


def versions_in(weights: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return by which versions of its modules a `state_dict` was written, by their names.

    Some modules read weights of old versions in another way. Where this is None they take them for
    weights of the oldest, as torch does for those without.

    Args:
        weights: What `Module.state_dict` has returned, or a copy.
    """
    versions = read(weights, "_metadata")
    return versions if isinstance(versions, dict) else None


def put_versions(weights: Mapping[str, Any], versions: Mapping[str, Any] | None) -> None:
    """Note in weights by which versions of modules they were written.

    Args:
        weights: An `OrderedDict`, for `Module.load_state_dict`.
        versions: What `versions_in` has returned.
    """
    if versions and not PUBLIC_ONLY:
        weights._metadata = dict(versions)  # type: ignore[attr-defined]


OVERWRITTEN = "one of the variables needed for gradient computation has been modified by an inplace"
"""How an error of torch begins that an update explains; with another text it is raised as it is."""


def reduces_in_another_type(module: torch.nn.Module) -> bool:
    """Return whether FSDP2 communicates a module's gradients in another type than they have.

    It keeps those that are still to be communicated where only it finds them then. Where that
    cannot be told it may always be so, and the gradients of merged steps are communicated in each
    of them.

    Args:
        module: A module that `fully_shard` was called with.
    """
    state = read(module, "_get_fsdp_state", lambda: None)()
    policy = read(state, "_mp_policy")
    return policy is None or getattr(policy, "reduce_dtype", None) is not None


def parameter_count_of(wrapper: torch.nn.parallel.DistributedDataParallel) -> int | None:
    """Count the parameters whose gradients DistributedDataParallel communicates.

    Where that cannot be told the update communicates them, after the backward pass.

    Args:
        wrapper: A model in its wrapper.

    Returns:
        Their number, or None.
    """
    told = read(wrapper, "_get_ddp_logging_data", dict)()
    count = told.get("num_parameter_tensors")
    return count if isinstance(count, int) else None


# ------------------------------------------------------------------ for steps that are captured

OF_MODULES = frozenset(
    {"_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_non_persistent_buffers_set"}
    | {"_state_dict_hooks", "_state_dict_pre_hooks"}
)
"""What a module keeps that has no part in a step: a change of it would be looked at in vain."""


def tables_of(module: torch.nn.Module) -> list[dict[str, Any]] | None:
    """Return the tables of the parameters and buffers that a module itself has.

    Args:
        module: The module.

    Returns:
        The tables; None where they cannot be had, and steps are not captured.
    """
    tables = [read(module, "_parameters"), read(module, "_buffers")]
    return tables if all(isinstance(table, dict) for table in tables) else None


def hook_tables(optimizer: torch.optim.Optimizer) -> list[dict[Any, Any]]:
    """List the tables of what is called around the steps of an optimizer, or of all of them.

    Args:
        optimizer: The optimizer.

    Returns:
        Four tables; fewer where they cannot be had, and steps are not captured.
    """
    every = sys.modules.get("torch.optim.optimizer")
    found = [
        read(optimizer, "_optimizer_step_pre_hooks"),
        read(optimizer, "_optimizer_step_post_hooks"),
        read(every, "_global_optimizer_pre_hooks"),
        read(every, "_global_optimizer_post_hooks"),
    ]
    return [table for table in found if isinstance(table, dict)]


def module_hook_tables() -> list[dict[Any, Any]]:
    """List the tables of what is called around the forward and backward passes of all modules."""
    module = sys.modules.get("torch.nn.modules.module")
    found = [
        read(module, "_global_forward_hooks"),
        read(module, "_global_forward_pre_hooks"),
        read(module, "_global_backward_hooks"),
        read(module, "_global_backward_pre_hooks"),
    ]
    return [table for table in found if isinstance(table, dict)]


def optimizer_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether something is called around the steps of an optimizer.

    Where that cannot be told there may always be, and steps are not captured.

    Args:
        optimizer: The optimizer.
    """
    tables = hook_tables(optimizer)
    return len(tables) < 4 or any(tables)


def scheduler_has_wrapped(step: Any) -> bool:
    """Return whether a scheduler of torch has put itself around an optimizer's step, to count it.

    Args:
        step: What stands in the place of the optimizer's `step`.
    """
    return bool(read(step, "_wrapped_by_lr_sched", False))


def scaler_tensors(scaler: torch.amp.GradScaler) -> list[torch.Tensor] | None:
    """Return what a scaler of losses remembers.

    Args:
        scaler: The scaler.

    Returns:
        Its scale, and for how many steps in a row all gradients were finite; None where that cannot
        be had, and steps are not captured, or before it has scaled anything.
    """
    found = [read(scaler, "_scale"), read(scaler, "_growth_tracker")]
    return found if all(isinstance(one, torch.Tensor) for one in found) else None


def scaler_records(scaler: torch.amp.GradScaler) -> dict[int, Any] | None:
    """Return what a scaler has seen of the gradients of optimizers since its last update.

    Args:
        scaler: The scaler.

    Returns:
        It by the ids of the optimizers; None where that cannot be had, and steps are not captured.
    """
    found = read(scaler, "_per_optimizer_states")
    return found if isinstance(found, dict) else None


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Let the schedulers of an optimizer know that it has taken a step.

    Args:
        optimizer: The optimizer.
    """
    if not PUBLIC_ONLY:
        optimizer._opt_called = True  # type: ignore[attr-defined]


grad_hooks: Callable[[torch.Tensor], Any] | None = look_up(
    "torch.Tensor._backward_hooks", lambda found: True
) and attrgetter("requires_grad", "grad", "_backward_hooks", "_post_accumulate_grad_hooks")
"""Gives whether a tensor requires gradients, its gradient, and two tables of hooks, each None.

Where it is None steps are not captured.
"""

_modes: Any = look_up("torch._C._len_torch_function_stack", lambda found: found() >= 0)
_dispatch_modes: Any = look_up("torch._C._len_torch_dispatch_stack", lambda found: found() >= 0)
# gives what a program has around whatever is kept for backward passes
_saved_hooks: Any = look_up(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda found: found(True) is None
)


def environment(device: str) -> tuple[Any, ...] | None:
    """Return what around a step decides how torch computes in this thread.

    Args:
        device: The kind of device, for autocast.

    Returns:
        Something to compare; None where it is such that steps are not captured: modes, transforms
        or hooks of saved tensors that look on, or names that cannot be had.
    """
    if (
        _modes is None
        or _dispatch_modes is None
        or _saved_hooks is None
        or _modes()
        or _dispatch_modes()
        or _saved_hooks(True) is not None
        or transforms_are_active()
        or torch.is_inference_mode_enabled()
        or torch.is_anomaly_enabled()
    ):
        return None
    autocast = torch.is_autocast_enabled(device)
    found = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_autocast_dtype(device) if autocast else None,
        torch.is_autocast_cache_enabled(),
    )
    return found if device == "cpu" else (*found, *_around_cuda())


def _around_cuda() -> tuple[Any, ...]:
    """Return what decides besides which kernels CUDA takes: they are chosen when a step is made."""
    # which are untyped, or made as they are looked up
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    started: Any = torch.cuda.is_initialized
    autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.get_autocast_dtype("cpu") if autocast else None,
        # what a device without an index is
        torch.cuda.current_device() if started() else None,
        cuda.matmul.fp32_precision,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
    )


class Tools(NamedTuple):
    """What torch has for capturing and compiling, all of it outside of its public API.

    Attributes:
        fake_mode: Makes the mode in which tensors have types and shapes, and no values; given True,
            one in which sizes can be open.
        open_like: Given such a mode and a tensor, makes one without values whose axis 0 is open:
            its size is a symbol, the same for all tensors with as many rows.
        admitted: Given such a mode and an open size, returns what tells for which sizes all that
            was done with it holds, or None where it is for a single one.
        hint: Gives the size that an open size was made of, and a size itself.
        text_of_sizes: The code that makes text of an open size.
        make_graph: Traces a function into a graph.
        dispatcher: A context in which what writes to its arguments says so.
        dispatch_mode: The class of modes that see each operation.
        writes: Tells whether an operation writes to what it is given.
        no_dispatch: Makes a context in which no mode sees what is done.
        storage_key: Given a tensor, something that is the same for two that share memory.
        compile: Compiles a graph by Inductor; some operations are left to torch's own kernels.
        decompositions: Gives what Inductor wants taken apart.
        backend: Finds a backend of `torch.compile` by its name.
    """

    fake_mode: Callable[[bool], Any]
    open_like: Callable[[Any, torch.Tensor], torch.Tensor]
    admitted: Callable[[Any, Any], Callable[[int], bool] | None]
    hint: Callable[[Any], int]
    text_of_sizes: CodeType
    make_graph: Callable[..., Any]
    dispatcher: Callable[[], Any]
    dispatch_mode: type
    writes: Callable[[Any], bool]
    no_dispatch: Callable[[], Any]
    storage_key: Callable[[torch.Tensor], int]
    compile: Callable[
        [Any, Sequence[torch.Tensor], Any, bool, Collection[Any]], Callable[[list[Any]], Any]
    ]
    decompositions: Callable[[bool], dict[Any, Any]]
    backend: Callable[[str], Callable[..., Any]]


@lru_cache(maxsize=1)
def tools() -> Tools | None:
    """Find what torch has for capturing and compiling; it is imported here, and not before.

    Returns:
        The tools; None where they cannot be had, and steps are not captured.
    """
    if PUBLIC_ONLY:
        return None
    try:
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        from torch.utils._mode_utils import no_dispatch
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return None
    return Tools(
        # programs are kept on disk only of modes that could have open sizes
        lambda open_sizes: FakeTensorMode(
            allow_non_fake_inputs=True,
            shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False),
            static_shapes=not open_sizes,
        ),
        _open_like,
        _admitted,
        lambda size: size if isinstance(size, int) else int(size.node.hint),
        torch.SymInt.__repr__.__code__,
        make_fx,
        enable_python_dispatcher,
        TorchDispatchMode,
        lambda operation: bool(operation._schema.is_mutable),
        no_dispatch,
        lambda tensor: tensor.untyped_storage()._cdata,
        _compile,
        _decompositions,
        _backend,
    )


def _open_like(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    # a piece of a larger tensor is another one as large as itself
    alone = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    axes = [DimDynamic.DUCK] + [DimDynamic.STATIC] * (tensor.dim() - 1)
    opened: torch.Tensor = mode.from_tensor(
        alone,
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes),
        source=ConstantSource("rows"),
    )
    return opened


def _admitted(mode: Any, size: Any) -> Callable[[int], bool] | None:
    symbol, env = size.node.expr, mode.shape_env
    conditions = [guard.expr for guard in env.guards]
    # an expression without symbols is the one size that it was found to be
    if symbol.free_symbols != {symbol} or any(env.deferred_runtime_asserts.values()):
        return None
    if not all(one.free_symbols <= {symbol} for one in conditions):
        return None

    def admits(length: int) -> bool:
        # a single row is no case of many: it is broadcast, and has no variance
        return length > 1 and all(one.subs(symbol, length) == True for one in conditions)  # noqa: E712

    return admits


def _decompositions(fallback_random: bool) -> dict[Any, Any]:
    # some decompositions count on the other module to be there
    from torch._inductor import config, lowering  # noqa: F401
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=fallback_random):
        return dict(select_decomp_table())


def _compile(
    graph: Any,
    inputs: Sequence[torch.Tensor],
    mode: Any,
    fallback_random: bool,
    left: Collection[Any],
) -> Callable[[list[Any]], Any]:
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    settings: dict[str, Any] = {
        "fallback_random": fallback_random,
        # types, shapes and strides of what it is called with are compared before
        "size_asserts": False,
        # what records graphs of CUDA is around what is compiled
        "triton.cudagraphs": False,
        # all updates read the optimizers' numbers, which is no reason to fuse one with all others
        "max_fusion_buffer_group_pairwise_attempts": 8,
    }
    backward = torch.ops.aten.convolution_backward.default
    is_on_cpu = not any(getattr(one, "is_cuda", False) for one in inputs)
    if is_on_cpu and any(node.target is backward for node in graph.graph.nodes):
        # other layouts that are faster forwards take longer than they save backwards
        settings["layout_optimization"] = False
    with (
        config.patch(settings),
        _left_to_torch(left),
        _first_instruction_set(),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
        torch.no_grad(),
    ):
        joint_graph_passes(graph)
        output = next(node for node in graph.graph.nodes if node.op == "output")
        # their strides are those that the ops gave them
        output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
        compiled: Any = compile_fx_inner(graph, list(inputs))
    # what it keeps a record of is for its first call, which torch's own callers make by it
    call: Callable[[list[Any]], Any] = getattr(compiled, "current_callable", None) or compiled
    return call


_lowering = Lock()


@contextmanager
def _left_to_torch(operations: Collection[Any]) -> Iterator[None]:
    """Have Inductor call torch's kernels for some operations, where it would make loops."""
    from torch._inductor import lowering

    leave: Any = lowering.fallback_handler
    table = lowering.lowerings
    # one compilation at a time: all of them share the table
    with _lowering:
        before = {one: table[one] for one in operations if one in table}
        for one in before:
            table[one] = leave(one, add_to_fallback_set=False)
        try:
            yield
        finally:
            table.update(before)


@contextmanager
def _first_instruction_set() -> Iterator[None]:
    """Have Inductor try the compiler with the vector instructions that it will use, and no others.

    To take the first kind that works it would try all those that the processor has, and for each
    compile and load a few lines.
    """
    from torch._inductor import config, cpu_vec_isa

    room: Any = cpu_vec_isa
    every: Any = getattr(room, "valid_vec_isa_list", None)
    kinds: Any = getattr(room, "supported_vec_isa_list", ())
    flags: Any = getattr(room, "x86_isa_checker", list)
    first: Any = None
    # which of them it is can be asked for, by the width or by a name
    if every and config.cpp.simdlen is None and "ATEN_CPU_CAPABILITY" not in environ:
        has = set(flags())
        first = next((one for one in kinds if has.issuperset(str(one).split()) and one), None)
    if first is None:
        yield
        return
    room.valid_vec_isa_list = lambda: [first]
    try:
        yield
    finally:
        room.valid_vec_isa_list = every


def _backend(name: str) -> Callable[..., Any]:
    from torch._dynamo import lookup_backend

    found: Callable[..., Any] = lookup_backend(name)
    return found
