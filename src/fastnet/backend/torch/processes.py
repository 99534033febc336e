"""The processes of torch that train together: started, waited for, and their results joined."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastnet.backend.joining import TensorKind, join_results
from fastnet.backend.torch._internals import profiler_is_on
from fastnet.backend.torch.engines import engine_of, groups_of, has_group, process_count, wrapper_of
from fastnet.backend.torch.full_tensors import local_tensor
from fastnet.backend.torch.meetings import apart
from fastnet.backend.torch.watching import Watch
from fastnet.errors import RankError, shorten
from fastnet.util.launchers import torch_processes

__all__ = [
    "barrier",
    "collect",
    "communication",
    "differences",
    "exchange",
    "gather",
    "meet",
    "rank",
    "require_group",
    "seed",
    "start",
    "stop",
    "the_watch",
    "together",
    "told_spread",
    "watch",
    "world_size",
]

# how torch begins the names of what its backends do
_COLLECTIVES = ("gloo:", "nccl:", "xccl:")
# what torchrun tells each process
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# read once: a launcher has set it before anything is imported
_LAUNCHED = torch_processes() > 1
# whether the group is ours, and not one that the program has made
_owned = False
_watch: Watch | None = None


def start(
    backend: str | None = None,
    device: torch.device | str | int | None = None,
    timeout: float | None = None,
) -> None:
    """Join the other processes; one that is among them already stays as it is.

    Args:
        backend: What to communicate by; None for the best for the device.
        device: What to compute on; None for the GPU of this process where each has one, else the
            CPU.
        timeout: After how many seconds others are no longer waited for; None for torch's own.

    Raises:
        ValueError: If the environment tells too little, or the device is not there.
    """
    global _owned
    if has_group():
        return
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        if torch_processes() == 1:
            return
        raise ValueError(
            f"This is one of {os.environ['WORLD_SIZE']} processes, but {missing} is not in the "
            "environment. Start the program with torchrun, or set what is missing."
        )
    if torch_processes() == 1:
        return
    if not dist.is_available():
        raise ValueError(
            "This torch was built without torch.distributed, so that processes cannot work "
            "together. Install another build, or start the program as one process."
        )
    chosen = _device(device)
    if chosen.type not in ("cpu", "mps"):
        torch.get_device_module(chosen).set_device(chosen)
    settings: dict[str, Any] = {}
    if timeout is not None:
        settings["timeout"] = timedelta(seconds=timeout)
    dist.init_process_group(backend or _backend_for(chosen), **settings)
    _owned = True


def rank() -> int:
    """Return the place of this process among all, from 0."""
    return dist.get_rank() if has_group() else 0


def world_size() -> int:
    """Return how many processes there are."""
    return process_count()


def require_group(task: str) -> None:
    """Refuse to work alone in one of several processes that a launcher has started.

    Args:
        task: What is to be done, for the error's text.

    Raises:
        ValueError: If there are other processes, but no process group with them.
    """
    if _LAUNCHED and not has_group():
        raise ValueError(
            f"{task}, in a process that was started as one of {os.environ.get('WORLD_SIZE')} "
            f"(rank {os.environ.get('RANK')}), but there is no process group: each would train by "
            "itself. Put `with fastnet.distributed.run():` around the program, or call "
            "fastnet.distributed.init() first."
        )


def barrier() -> None:
    """Wait until all processes have come here.

    Raises:
        ValueError: If a launcher has started several, but there is no process group.
    """
    require_group("A barrier is waited at")
    if world_size() > 1:
        meet("barrier")
        dist.barrier()


def meet(call: str) -> None:
    """Wait until all processes are in the same function of fastnet's, with the same arguments.

    What they communicate afterwards then fits, on whatever they communicate by.

    Args:
        call: The function, with the arguments that are to be the same, as a program writes it.

    Raises:
        RankError: If one of them is elsewhere, has failed, or does not come.
    """
    if world_size() == 1:
        return
    place = f"in {call}"
    if not _met_in_watch(place):
        _differing([place])


def differences(place: str, lines: Sequence[str]) -> list[list[str]] | None:
    """Compare what processes have alike, by a digest of 32 bytes.

    Args:
        place: Where they are.
        lines: What they have.

    Returns:
        The lines of all of them if there are different ones, else None.

    Raises:
        RankError: If one of them is elsewhere, has failed, or does not come.
    """
    _met_in_watch(place)
    return _differing([place, *lines])


def _met_in_watch(place: str) -> bool:
    """Meet by the watch, if there is one: that finds those, too, who never come to a meeting."""
    kept = the_watch()
    if kept is not None:
        kept.meet(place, dist.group.WORLD.get_group_store().timeout.total_seconds())  # type: ignore[union-attr]
    return kept is not None


def _differing(lines: list[str]) -> list[list[str]] | None:
    """Exchange a digest, of one size wherever a process is, and the lines where it differs."""
    digest = bytearray(hashlib.sha256("\n".join(lines).encode()).digest())
    own = torch.frombuffer(digest, dtype=torch.uint8).to(_device_of_group())
    everyone = [torch.empty_like(own) for _ in range(process_count())]
    dist.all_gather(everyone, own)
    if all(torch.equal(one, everyone[0]) for one in everyone):
        return None
    texts = exchange(lines)
    for other, (place, *_) in enumerate(texts):
        if place != texts[0][0]:
            raise RankError(apart(0, texts[0][0], other, place))
    return [rest for _, *rest in texts]


def _device_of_group() -> torch.device:
    """Return a device whose tensors the process group communicates."""
    if dist.get_backend() == "gloo" or "cpu:" in str(dist.get_backend_config()):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def gather(result: Mapping[str, Any], samples: int | None = None) -> dict[str, Any]:
    """Put the results of all processes together, on each of them.

    Args:
        result: Values by key.
        samples: Of how many samples they are; None for what can be seen of that.

    Returns:
        A value by key: see `fastnet.distributed.gather`.

    Raises:
        ValueError: If the processes have different keys, or one of them more values under a key.
    """
    require_group("Results are gathered")
    if world_size() == 1:
        return dict(result)
    meet("gather")
    results, sizes = zip(*exchange((dict(result), samples)), strict=True)
    return join_results(results, sizes, _KIND)


def _mean_like(mean: float, tensor: torch.Tensor) -> torch.Tensor:
    dtype = tensor.dtype if tensor.is_floating_point() else torch.float64
    return torch.tensor(mean, dtype=dtype, device=tensor.device)


_KIND = TensorKind(
    is_tensor=torch.is_tensor,
    has_rows=lambda tensor: tensor.ndim > 0,
    is_number=lambda tensor: tensor.ndim == 0 and not tensor.is_complex(),
    concatenate=torch.cat,
    mean_like=_mean_like,
    errors=(RuntimeError, ValueError),
)


def exchange(value: Any) -> list[Any]:
    """Give a value to all processes.

    Args:
        value: What can be pickled; tensors come out on the CPU.

    Returns:
        The values of all of them, in their order.
    """
    size = world_size()
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, _on_cpu(value))
    return values


def collect(value: Any) -> list[Any] | None:
    """Give a value to the first process.

    Args:
        value: What can be pickled; tensors come out on the CPU.

    Returns:
        The values of all of them on the first process, None on the others.
    """
    size = world_size()
    if size == 1:
        return [value]
    values: list[Any] | None = [None] * size if rank() == 0 else None
    dist.gather_object(_on_cpu(value), values, dst=0)
    return values


@contextmanager
def together(task: str) -> Iterator[None]:
    """Let all processes fail where one of them does.

    Args:
        task: What they do, for the error's text.

    Raises:
        RankError: If another process has failed.
        Exception: What this one has failed with.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    told = None if failure is None else f"{type(failure).__name__}: {failure}"
    texts = exchange(told)
    if failure is not None:
        raise failure
    for place, text in enumerate(texts):
        if text is not None:
            raise RankError(f"{task} has failed on rank {place}, and so here: {text}")


def told_spread(model: torch.nn.Module) -> str | None:
    """Say how a model is spread.

    Args:
        model: The model.

    Returns:
        By what, and over how many processes or devices; None for one that nothing spreads.
    """
    engine = engine_of(model)
    if engine is None:
        return None
    if engine == "dp":
        spread: Any = wrapper_of(model)
        return f"in DataParallel over {max(len(spread.device_ids), 1)} devices"
    count = math.prod(dist.get_world_size(group) for group in groups_of(model))
    if engine == "ddp":
        return f"in DistributedDataParallel over {count} processes"
    whole = sum(one.numel() for one in model.parameters())
    parts = sum(local_tensor(one).numel() for one in model.parameters())
    return f"sharded by FSDP2 over {count} processes, {parts:,} of {whole:,} parameters in this one"


@contextmanager
def communication() -> Iterator[dict[str, list[float]]]:
    """Take the times of collectives, where torch's profiler is not on already.

    Yields:
        A dict that has them when the context is left: seconds, by what torch calls each kind.
    """
    told: dict[str, list[float]] = {}
    if profiler_is_on():
        yield told
        return
    devices = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        devices.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=devices) as profile:
        yield told
    for event in profile.events():
        if event.name.startswith(_COLLECTIVES):
            told.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e6)


def seed(number: int) -> None:
    """Seed torch's generators.

    Args:
        number: The seed.
    """
    torch.manual_seed(number)


def watch() -> Watch | None:
    """Begin to listen for processes that fail; None where there is only one.

    Returns:
        The watch, which every process begins at the same place of the program.
    """
    global _watch
    if world_size() == 1:
        return None
    _watch = Watch(rank(), world_size())
    return _watch


def the_watch() -> Watch | None:
    """Return the watch that was begun and is still kept, None without one."""
    kept = _watch
    return None if kept is None or kept.is_over else kept


def stop() -> None:
    """Leave the other processes; a group that the program has made is the program's to end."""
    global _owned
    if _owned and has_group():
        dist.destroy_process_group()
    _owned = False


def _device(device: torch.device | str | int | None) -> torch.device:
    """Return the device of this process, which is there."""
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if device is None:
        each = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"])
        own = torch.cuda.device_count() >= each
        return torch.device("cuda", local) if own else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"fastnet.distributed got the device {shorten(device)}, which torch does not know: "
            f"{error}. Pass a torch.device, a name such as 'cuda:0', or None."
        ) from error
    if chosen.type in ("cpu", "mps"):
        return chosen
    index: int | None = chosen.index
    place = local if index is None else index
    there = torch.get_device_module(chosen).device_count()
    if place >= there:
        raise ValueError(
            f"Rank {os.environ['RANK']} is to run on '{chosen.type}:{place}', but this machine has "
            f"{there} of these devices. Start as many processes as there are devices, or give "
            "fastnet.distributed another device."
        )
    return torch.device(chosen.type, place)


def _backend_for(device: torch.device) -> str:
    if device.type in ("cpu", "mps"):
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def _on_cpu(value: Any) -> Any:
    from fastnet.util import move_tensors_to_device

    return move_tensors_to_device(value, "cpu")
