"""Every private name of torch that fastnet uses.

A private name is used in an eager step only where that saves at least 3 % of the step, as its
comment says (torch 2.13, one thread). The other names are here because torch offers no public way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from os.path import dirname
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.nn.modules import module as _all_modules
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim import optimizer as _all_optimizers
from torch.utils._mode_utils import no_dispatch as no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from fastnet._guards import MemberGuard

run_backward: Callable[..., Any] | None = torch.autograd.Variable._execution_engine.run_backward
"""Autograd's engine. Saves 7 to 10 % of a small training step over `torch.autograd.grad`."""

transforms_are_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Tells whether a transform of `torch.func` is active, in which the engine must not be called."""

profiler_is_on: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Tells whether a profiler is on. Saves 12 % of a profiled step over unconditional ranges."""

set_grad_enabled: Callable[[bool], object] = torch._C._set_grad_enabled
"""Saves 3 % of a small inference step over `torch.set_grad_enabled`, which is a class."""

SUBMODULES = "_modules"
"""The attribute that holds a module's submodules. Saves 7 to 13 % of a small inference step.

The public fallback is `Module.children()`; a module without it is switched in every step.
"""


def is_defined_by_torch(function: Any) -> bool:
    """Return whether a function was defined by torch, and not patched by a program."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(dirname(torch.__file__))


COMPILED = "_orig_mod"
"""The name under which a model from `torch.compile` holds the original model."""

OVERWRITTEN = "one of the variables needed for gradient computation has been modified by an inplace"
"""The beginning of the error that torch raises in backward after an in-place update."""

version_of = attrgetter("_version")
"""Reads how often a tensor, or one that it is a view of, was changed in place."""


def versions_in(weights: Mapping[str, Any]) -> Any:
    """Return the module versions that a `state_dict` was written by; None if it has none."""
    return getattr(weights, "_metadata", None)


def put_versions(weights: Mapping[str, Any], versions: Mapping[str, Any] | None) -> None:
    """Note in a `state_dict` the module versions that it was written by."""
    if versions:
        weights._metadata = dict(versions)  # type: ignore[attr-defined]


def has_reduce_dtype(module: torch.nn.Module) -> bool:
    """Return whether FSDP2 communicates the gradients of a module in a dtype of their own."""
    sharded: Any = module
    return sharded._get_fsdp_state()._mp_policy.reduce_dtype is not None


def parameter_count_of(wrapper: Any) -> int | None:
    """Count the parameters whose gradients DistributedDataParallel communicates."""
    return wrapper._get_ddp_logging_data().get("num_parameter_tensors")  # type: ignore[no-any-return]


def has_communication_hooks(wrapper: Any) -> bool:
    """Return whether a program has registered communication hooks of DistributedDataParallel."""
    return bool(wrapper._comm_hooks) or hasattr(wrapper, "buffer_hook")


def is_joining(wrapper: Any) -> bool:
    """Return whether a DistributedDataParallel is in the context of `torch`'s `Join`."""
    return bool(wrapper._join_config.enable)


def group_of_name(name: str) -> Any:
    """Return the process group that has a name as its `group_name`."""
    from torch.distributed import distributed_c10d

    groups: Any = distributed_c10d
    return groups._resolve_process_group(name)


COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""The namespaces of the operators that communicate with other processes."""

GRADIENT_HOOK_TABLES = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""The attributes of a tensor that hold the tables of the hooks on its gradient, or None."""


def gradient_hook_tables(parameters: Iterable[torch.Tensor]) -> list[dict[int, Any]]:
    """List the tables of the hooks on the gradients of parameters; most have none."""
    tables = (getattr(parameter, name) for parameter in parameters for name in GRADIENT_HOOK_TABLES)
    return [table for table in tables if table is not None]


def read_gradients(parameters: Iterable[torch.Tensor]) -> MemberGuard:
    """Read the gradients of parameters and the tables of their hooks, to compare them later."""
    return MemberGuard(parameters, attributes=("grad", *GRADIENT_HOOK_TABLES))


WRAPPED_STEP = "_wrapped_by_lr_sched"
"""An attribute of an optimizer's `step` that a scheduler has wrapped to count steps."""

tables_of = attrgetter("_parameters", "_buffers")
"""Reads the tables of the parameters and buffers that a module itself has."""

TABLES = ("_parameters", "_buffers", SUBMODULES)
"""The attributes of a module that hold its parameters, buffers and submodules."""


def unsaved_buffers(module: torch.nn.Module) -> set[str]:
    """Return the names of the buffers of a module itself that its `state_dict` does not contain."""
    return module._non_persistent_buffers_set


def step_hook_tables(optimizer: torch.optim.Optimizer) -> list[dict[Any, Any]]:
    """List the tables of hooks around the steps of an optimizer, and of all optimizers."""
    return [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        *global_step_hook_tables(),
    ]


def global_step_hook_tables() -> list[dict[Any, Any]]:
    """List the tables of hooks around the steps of all optimizers."""
    return [
        _all_optimizers._global_optimizer_pre_hooks,
        _all_optimizers._global_optimizer_post_hooks,
    ]


def global_module_hook_tables() -> list[dict[Any, Any]]:
    """List the tables of hooks around the forward and backward passes of all modules."""
    return [
        _all_modules._global_forward_hooks,
        _all_modules._global_forward_pre_hooks,
        _all_modules._global_backward_hooks,
        _all_modules._global_backward_pre_hooks,
    ]


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Let the schedulers of an optimizer know that it has taken a step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


GlobalState = torch._C._dynamo.guards.GlobalStateGuard
"""Compares grad mode, autocast, default dtype and settings of torch. Saves 3 % of a small step."""


def modes_are_active() -> bool:
    """Return whether modes or hooks of saved tensors observe what is computed in this thread."""
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that tensors have in common if they share memory."""
    return int(tensor.untyped_storage()._cdata)


def sparse_parts(tensor: torch.Tensor) -> list[Any]:
    """Return indices, values, shape and whether they are coalesced, with entries in their order."""
    return [tensor._indices(), tensor._values(), tuple(tensor.shape), tensor.is_coalesced()]


def tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """Return a function that tells whether tensors have the memory, shape and dtype they have now.

    It also compares strides and `requires_grad`. Saves 20 % of an inference step of 120 modules
    over `Tensor.is_set_to`.
    """
    if not tensors:
        return lambda: True
    addresses = MemberGuard(tensors, methods=("data_ptr",))
    sizes: Any = [list(tensor.shape) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    check = guards.check
    return lambda: check(*tensors) and addresses.are_unchanged()


is_all_true: Any = torch._is_all_true
"""The function by which distributions read whether their arguments are valid."""

DISTRIBUTION_CHECKS = {
    function.__code__ for function in (Distribution.__init__, Distribution._validate_sample)
}
"""The functions that check the arguments of a distribution, and the values it is asked for."""


def checks_by_default(distribution: Distribution) -> bool:
    """Return whether a distribution checks only because all of them do by default."""
    holders = [distribution, *type(distribution).__mro__]
    first = next(holder for holder in holders if "_validate_args" in vars(holder))
    return first is Distribution


def weight_hook_of(module: torch.nn.Module) -> str | None:
    """Return the function of `torch.nn.utils` whose hook replaces a module's weight, or None."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            return "spectral_norm"
        if isinstance(hook, WeightNorm):
            return "weight_norm"
    return None


def writes(operation: Any) -> bool:
    """Return whether an operation writes to its arguments."""
    return isinstance(operation, torch._ops.OpOverload) and bool(operation._schema.is_mutable)


def returns_nothing(operation: Any) -> bool:
    """Return whether a target of a graph is an operation without results."""
    return isinstance(operation, torch._ops.OpOverload) and not operation._schema.returns


def import_dynamo() -> None:
    """Let Dynamo replace `torch.manual_seed` and methods of `torch.nn.Module` that it wraps."""
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    install_generation_tagging_init()


def fake_mode(symbolic_sizes: bool) -> Any:
    """Return a mode in which tensors have no values, and sizes may be symbols."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Inductor caches programs on disk only of modes that have a ShapeEnv.
    return FakeTensorMode(
        allow_non_fake_inputs=True,
        shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False),
        static_shapes=not symbolic_sizes,
    )


def length_symbol(mode: Any, length: int, index: int) -> Any:
    """Return a symbol for the length of an axis in a trace, which is 2 or more."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    env, source = mode.shape_env, ConstantSource(f"length{index}")
    symbol = env.create_symbol(length, source, dynamic_dim=DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=length, source=source)


def number_symbol(mode: Any, value: float, index: int) -> Any:
    """Return a symbol for a Python number in a trace."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    env, source = mode.shape_env, ConstantSource(f"number{index}")
    symbol = env.create_unspecified_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
    make = env.create_symintnode if type(value) is int else env.create_symfloatnode
    return make(symbol, hint=value, source=source)


def is_specialized(mode: Any, symbol: Any) -> bool:
    """Return whether a trace is specialized to the value of a symbol, or has conditions on it."""
    free, guards = symbol.node.expr.free_symbols, mode.shape_env.guards
    return not free or any(free & guard.expr.free_symbols for guard in guards)


def find_backend(name: str) -> Callable[..., Any]:
    """Return a backend of `torch.compile` by its name; raise a ValueError if there is none."""
    from torch._dynamo import list_backends, lookup_backend

    try:
        return lookup_backend(name)
    except torch._dynamo.exc.InvalidBackend:
        known = ", ".join(map(repr, ["eager", *list_backends()]))
        text = f"CompileOptions has backend={name!r}. Pass one of {known}, or a function."
        raise ValueError(text) from None


def decompositions(fallback_random: bool) -> dict[Any, Any]:
    """Return the decompositions that Inductor expects to be applied."""
    # Importing `lowering` registers decompositions.
    from torch._inductor import config, lowering  # noqa: F401
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=fallback_random):
        return dict(select_decomp_table())


class _LayerCount(int):
    """A number of layers that makes `num_layers < i - 1` true, so that torch applies dropout."""

    def __lt__(self, other: int) -> bool:
        return True


@contextmanager
def eager_recurrent_layers() -> Iterator[None]:
    """Let a trace in this thread keep recurrent layers as eager torch runs them.

    Torch's decomposition unrolls an LSTM layer over time if its input requires gradients, as behind
    an embedding. It leaves out the dropout between layers, because it tests `num_layers < i - 1`
    before it makes the right comparison, `i < num_layers - 1`.
    """
    from torch._decomp import decompositions

    patched: Any = decompositions
    thread, select = threading.get_ident(), patched.select_one_layer_lstm_function
    run_layers = patched._rnn_helper

    def select_whole(data: torch.Tensor, hidden: Any, parameters: Any) -> Any:
        is_here = threading.get_ident() == thread
        return select(data.detach() if is_here else data, hidden, parameters)

    def run_with_dropout(
        data: Any, hidden: Any, parameters: Any, has_biases: bool, layers: int, *settings: Any
    ) -> Any:
        layers = _LayerCount(layers) if threading.get_ident() == thread else layers
        return run_layers(data, hidden, parameters, has_biases, layers, *settings)

    patched.select_one_layer_lstm_function = select_whole
    patched._rnn_helper = run_with_dropout
    try:
        yield
    finally:
        patched.select_one_layer_lstm_function = select
        patched._rnn_helper = run_layers


def has_onednn_product() -> bool:
    """Return whether torch has oneDNN's product of matrices."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply two float32 matrices on the CPU with oneDNN."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return multiply(left, right.t(), None, "none", [], "")  # type: ignore[no-any-return]


_OWN_NAMESPACES = ("aten", "mkldnn", "prim", "prims", "fastnet")


def _is_custom(node: Any) -> bool:
    """Return whether a node of a graph calls an operator that is neither torch's nor fastnet's."""
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return is_operator and node.target.namespace not in _OWN_NAMESPACES


def compile_graph(graph: Any, inputs: Sequence[Any], mode: Any, fallback_random: bool) -> Any:
    """Compile a graph with Inductor."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    settings: dict[str, Any] = {
        "fallback_random": fallback_random,
        # The caller compares dtypes, shapes and strides of inputs. Results of custom operators may
        # differ in these from the results of their fake implementations.
        "size_asserts": any(map(_is_custom, graph.graph.nodes)),
        # Without it, Inductor compiles a test program for each instruction set, for 4 s each.
        "cpp.vec_isa_ok": config.cpp.vec_isa_ok is not False,
        # A CUDA graph could not read the optimizers' step counts, which are on the CPU.
        "triton.cudagraphs": False,
        # All updates read the optimizers' numbers, which is no reason to try to fuse each pair.
        "max_fusion_buffer_group_pairwise_attempts": 8,
    }
    backward = torch.ops.aten.convolution_backward.default
    is_on_cpu = not any(getattr(value, "is_cuda", False) for value in inputs)
    if is_on_cpu and any(node.target is backward for node in graph.graph.nodes):
        # Layouts that are faster in forward passes cost more in backward passes than they save.
        settings["layout_optimization"] = False
    with (
        config.patch(settings),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
        torch.no_grad(),
    ):
        joint_graph_passes(graph)
        output = next(node for node in graph.graph.nodes if node.op == "output")
        # Results keep the strides that the ops gave them.
        output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
        compiled: Any = compile_fx_inner(graph, list(inputs))
    # The object around the callable only records metrics of the first call.
    return getattr(compiled, "current_callable", None) or compiled
