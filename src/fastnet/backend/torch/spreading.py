"""Models spread over processes when they are built: which engine, with which options."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.model_metadata import set_metadata
from fastnet.backend.torch._internals import parameter_count_of
from fastnet.backend.torch.engines import bare, engine_of, has_group, process_count, wrapper_of
from fastnet.errors import nearest_name, shorten
from fastnet.util.devices import get_num_gpus, resolve_device
from fastnet.util.launchers import torch_processes
from fastnet.util.warnings import warn

__all__ = ["PARALLEL", "Spread", "known_to_engine", "note", "spread"]

PARALLEL = ("auto", "ddp", "fsdp", "dp", None)

# what `build` takes besides options, and may be meant by one
_OWN = {"device", "mixed_precision", "model_name", "parallel", "weights_path"}

_OPTIONS: dict[str | None, tuple[str, ...]] = {
    "ddp": (
        "bucket_cap_mb",
        "broadcast_buffers",
        "device_mesh",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "process_group",
        "static_graph",
    ),
    "fsdp": (
        "blocks",
        "device_mesh",
        "find_unused_parameters",
        "ignored_params",
        "mp_policy",
        "offload_policy",
        "reshard_after_forward",
        "shard_placement_fn",
    ),
    "dp": (),
    None: (),
}

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

# which wrapper a model is in, so that no second one is put around it: both would be heard
_wrappers: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = (
    weakref.WeakKeyDictionary()
)


class Spread(NamedTuple):
    """How a model is to be spread.

    Attributes:
        device: Where to, or None to let the network move it.
        parallel: The engine, one of `PARALLEL`.
        options: What to pass to the engine.
    """

    device: Any = None
    parallel: str | None = "auto"
    options: Mapping[str, Any] = {}


def spread(model: torch.nn.Module, how: Spread, name: str) -> torch.nn.Module:
    """Fit a model to the devices and processes that there are.

    Args:
        model: The model; one that an engine has already stays as it is.
        how: How to spread it.
        name: Its name, for error texts.

    Returns:
        The model, in a wrapper if the engine has one.

    Raises:
        ValueError: If there is no such engine, option or device, if the model has another engine,
            or if there is no process group where one is needed.
        TypeError: If an option is of the wrong kind.
    """
    parallel = _read(how.parallel, name)
    has = engine_of(model)
    if has is not None:
        _require_same(has, parallel, how, name)
        wrapper = wrapper_of(model)
        if isinstance(wrapper, DistributedDataParallel) and wrapper not in _known:
            trained = [one for one in model.parameters() if one.requires_grad]
            # else some were frozen or thawed since, and it cannot be told which
            if parameter_count_of(wrapper) == len(trained):
                _known[wrapper] = list(map(weakref.ref, trained))
        return model
    engine = _choose(parallel, model, name)
    _check_options(engine, parallel, how.options, name)
    if how.device is not None:
        model.to(resolve_device(how.device))
    _require_unwrapped(model, engine, name)
    if engine is None:
        return model
    if engine == "dp":
        wrapped: torch.nn.Module = torch.nn.DataParallel(model)
    else:
        if not has_group():
            raise _no_group(parallel, name)
        device = resolve_device(how.device)
        make = _wrap_ddp if engine == "ddp" else _shard
        wrapped = make(model, device, dict(how.options), name)
    _wrappers[bare(wrapped)] = weakref.ref(wrapped)
    return wrapped


def note(model: torch.nn.Module, how: Spread) -> None:
    """Write down what networks ask of how a model was spread.

    Args:
        model: What `spread` has returned.
        how: How it was to be spread.
    """
    given = how.device is not None or engine_of(model) is not None
    first = next(model.parameters(), None)
    set_metadata(model, "fe_device", first.device if given and first is not None else None)
    set_metadata(model, "fe_alone", how.parallel is None)


def known_to_engine(model: DistributedDataParallel) -> list[torch.nn.Parameter] | None:
    """List the parameters whose gradients DistributedDataParallel communicates.

    Args:
        model: The model in its wrapper.

    Returns:
        Those that were trained when the wrapper was made; None for a wrapper that `build` was
        given, if this cannot be told of it.
    """
    known = _known.get(model)
    if known is None:
        return None
    return [parameter for one in known if (parameter := one()) is not None]


_known: weakref.WeakKeyDictionary[torch.nn.Module, list[weakref.ref[torch.nn.Parameter]]] = (
    weakref.WeakKeyDictionary()
)


def _read(parallel: Any, name: str) -> str | None:
    if parallel is not None and parallel not in PARALLEL:
        raise ValueError(
            f"parallel={shorten(parallel)} of model '{name}' is none of 'auto', 'ddp', 'fsdp', "
            "'dp' and None."
        )
    chosen: str | None = parallel
    return chosen


def _choose(parallel: str | None, model: torch.nn.Module, name: str) -> str | None:
    """Decide which engine "auto" stands for."""
    if parallel != "auto":
        return parallel
    if process_count() < 2:
        if _launched() > 1 and not has_group():
            raise _no_group("auto", name)
        if get_num_gpus() > 1:
            _hint()
        return None
    # the engine refuses what has nothing to train
    return "ddp" if any(one.requires_grad for one in model.parameters()) else None


def _hint() -> None:
    warn(
        f"There are {get_num_gpus()} GPUs, of which one is used. Start the program with "
        f"`torchrun --nproc_per_node={get_num_gpus()} program.py`, which has a process for each, "
        "and call fastnet.distributed.init() before fastnet.build. For FastEstimator's way, "
        "DataParallel, pass parallel='dp'; parallel=None says that one is meant.",
    )


def _check_options(
    engine: str | None, parallel: str | None, options: Mapping[str, Any], name: str
) -> None:
    if parallel == "auto" and engine is None and all(one in _OPTIONS["ddp"] for one in options):
        return  # the same program in one process
    known = _OPTIONS[engine]
    for option in options:
        if option in known:
            continue
        owners = [repr(one) for one, names in _OPTIONS.items() if one and option in names]
        near = nearest_name(option, known or _OWN.union(*_OPTIONS.values()))
        if not owners and near is None:
            raise TypeError(
                f"build of model '{name}' got the option {option!r}, which neither it nor any "
                "engine that spreads models has. To give an optimizer settings pass a function, "
                "such as `optimizer_fn=lambda params: torch.optim.Adam(params, lr=1e-3)`."
            )
        if owners:
            advice = f" It is one of parallel={' and '.join(owners)}."
        else:
            advice = f" Did you mean {near!r}?"
        listed = f"the options {sorted(known)}" if known else "no options"
        raise TypeError(
            f"build of model '{name}' got the option {option!r}, but "
            f"parallel={parallel!r}{_stands_for(parallel, engine)} has {listed}.{advice}"
        )


def _stands_for(parallel: str | None, engine: str | None) -> str:
    return f" (here {engine!r})" if parallel == "auto" else ""


def _require_same(has: str, parallel: str | None, how: Spread, name: str) -> None:
    if parallel not in ("auto", None, has):
        raise ValueError(
            f"Model '{name}' is to have parallel={parallel!r}, but it has the engine {has!r} "
            "already. Pass the model without it, or leave `parallel` out."
        )
    if how.options:
        raise ValueError(
            f"Model '{name}' has the engine {has!r} already, so its options {sorted(how.options)} "
            "come too late. Give them to the engine, or pass the model without it."
        )


def _require_unwrapped(model: torch.nn.Module, engine: str | None, name: str) -> None:
    reference = _wrappers.get(bare(model))
    wrapper = None if reference is None else reference()
    if wrapper is None or wrapper is model:
        return
    raise ValueError(
        f"Model '{name}' is to have parallel={engine!r}, but the same {type(model).__name__} was "
        f"built with parallel={engine_of(wrapper)!r} before, and its weights would be updated in "
        "both ways. Use the model that the first build returned, also in a second network."
    )


def _no_group(parallel: str | None, name: str) -> ValueError:
    launched = (
        f"This process is one of {_launched()} of torchrun, but t" if _launched() > 1 else "T"
    )
    return ValueError(
        f"{launched}here is no process group to spread model '{name}' over "
        f"(parallel={parallel!r}). Call fastnet.distributed.init() before fastnet.build, or pass "
        "parallel=None for a model that stays by itself."
    )


def _launched() -> int:
    """Count the processes that torchrun, or what sets the same variables, has started."""
    return torch_processes() if all(name in os.environ for name in _TORCHRUN) else 1


def _wrap_ddp(
    model: torch.nn.Module, device: torch.device, options: dict[str, Any], name: str
) -> torch.nn.Module:
    model.to(device)
    if not any(one.requires_grad for one in model.parameters()):
        raise ValueError(
            f"Model '{name}' has no parameter with requires_grad, so there is nothing for "
            "parallel='ddp' to communicate. Pass parallel=None."
        )
    ids = None if device.type == "cpu" else [device]
    wrapped = DistributedDataParallel(model, device_ids=ids, **options)
    _known[wrapped] = [weakref.ref(one) for one in model.parameters() if one.requires_grad]
    return wrapped


def _shard(
    model: torch.nn.Module, device: torch.device, options: dict[str, Any], name: str
) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    is_block = _policy(options.pop("blocks", ()), model, name)
    finds_unused = options.pop("find_unused_parameters", False)
    mesh = options.pop("device_mesh", None)
    if mesh is None:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if not any(one.is_meta for one in model.parameters()):
        model.to(device)
        _hand_out(model, mesh)
    # the inner ones first, each of which keeps its own
    for module in reversed([one for one in model.modules() if one is not model and is_block(one)]):
        fully_shard(module, mesh=mesh, **options)
    sharded: Any = fully_shard(model, mesh=mesh, **options)
    if finds_unused:
        sharded.set_reduce_scatter_unused_params(True)
    return model


def _policy(blocks: Any, model: torch.nn.Module, name: str) -> Callable[[torch.nn.Module], bool]:
    """Read which modules are sharded by themselves."""
    if isinstance(blocks, type):
        blocks = [blocks]
    if isinstance(blocks, Iterable):
        classes = tuple(blocks)
        if all(isinstance(one, type) and issubclass(one, torch.nn.Module) for one in classes):
            found = [cls for cls in classes if any(isinstance(one, cls) for one in model.modules())]
            missing = [cls.__name__ for cls in classes if cls not in found]
            if missing:
                raise ValueError(
                    f"blocks names {missing}, but model '{name}' has no such modules. "
                    "print(model) shows what it has."
                )
            return lambda module: isinstance(module, classes)
    elif callable(blocks) and not inspect.isclass(blocks):
        policy: Callable[[torch.nn.Module], bool] = blocks
        return policy
    raise TypeError(
        f"blocks of model '{name}' is {shorten(blocks)}. Pass classes of modules, or a function "
        "that says of a module whether it is sharded by itself."
    )


def _hand_out(model: torch.nn.Module, mesh: Any) -> None:
    """Give each process the first one's weights: their parts must be of one model."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            for dimension in range(mesh.ndim):
                group = mesh.get_group(dimension)
                dist.broadcast(tensor.data, dist.get_global_rank(group, 0), group=group)
