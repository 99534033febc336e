"""Save and load the complete state of a run in one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet.backend.archive import Archive, Block, open_archive, write_archive
from fastnet.backend.dispatch import get_framework
from fastnet.backend.files import check_file_path, find_file, refuse_weights, write_atomically
from fastnet.backend.model_metadata import name_of, optimizers_of, set_metadata
from fastnet.backend.tree import block_to_array, decode, encode
from fastnet.backend.weights import current_optimizer_index
from fastnet.distributed import processes_of, raise_on_all_ranks
from fastnet.errors import shorten
from fastnet.framework import Framework, Processes
from fastnet.network.held_state import find_held, held_values, is_stateful, load_held
from fastnet.network.run_state import (
    find_stateful,
    load_random_state,
    load_states,
    random_state,
    restored_afterwards,
    state_for_rank,
    states_of,
)
from fastnet.op.checks import is_int

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork

_VERSION = 2
_FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow"}


class Checkpoint(NamedTuple):
    """The result of `load_checkpoint`: what was given to `save_checkpoint`.

    Attributes:
        epoch: The epoch.
        step: The step.
        values: The program's own values, by name.
    """

    epoch: int
    step: int
    values: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str],
    network: BaseNetwork,
    *,
    epoch: int = 0,
    step: int = 0,
    values: Mapping[str, Any] | None = None,
    stateful: Mapping[str, Any] | None = None,
) -> str:
    """Save everything that a run needs to resume exactly, in one file.

    The file contains the weights of the network's models, and which are trainable; the state of
    their optimizers (all of them, if they are scheduled) and gradient scalers; the state of every
    op, slicer and scheduler of the network that has a `state_dict` and a `load_state_dict`, such as
    merged gradients; generators and TensorFlow variables that other ops and the models hold; and
    the random number generators of Python, numpy and the framework. A warning names state that
    cannot be saved.

    The file is written atomically: a process that is killed leaves the old file or the new one. The
    layout is that of safetensors.

    In distributed training all processes call this at the same time with the same path, and rank 0
    writes. Do not put `if distributed.is_main():` around it.

    Args:
        path: The file. Its folder is made if it does not exist.
        network: The network, between two steps.
        epoch: The current epoch, as the program counts.
        step: The current step, as the program counts.
        values: More values of the program: None, bools, real numbers, strings, and lists, tuples,
            sets, dicts, arrays and tensors of these; complex numbers in arrays and tensors only.
        stateful: More objects with a `state_dict` and a `load_state_dict`, by name: learning rate
            schedulers of torch, samplers.

    Returns:
        The path.

    Raises:
        TypeError: If a state contains an object that a file cannot hold.
        ValueError: If an argument is invalid, an object of `stateful` has no state, or a model has
            no variables yet.
        OSError: If the file cannot be written.
        RankError: If another process has failed to do so.

    >>> import tempfile, torch, fastnet
    >>> from fastnet.op.tensorop.model import ModelOp
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam")
    >>> network = fastnet.Network([ModelOp(model, "x", "y")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fastnet.save_checkpoint(f"{folder}/run.ckpt", network, epoch=3)
    ...     fastnet.load_checkpoint(path, network).epoch
    3
    """
    for name, count in (("epoch", epoch), ("step", step)):
        if not is_int(count) or count < 0:
            raise ValueError(f"save_checkpoint's {name} is an int of at least 0, not {count!r}.")
    name = check_file_path(path, "checkpoint")
    _check_arguments("save_checkpoint", network, values=values, stateful=stateful)
    framework = get_framework(network.target_type)
    processes = processes_of(network.target_type)
    rank = 0 if processes is None else processes.rank()
    blocks: dict[str, Block] = {}
    with raise_on_all_ranks(processes, "Saving a checkpoint"):
        objects = _find_objects(network, stateful, "save_checkpoint")
        held = find_held(network)
        rank_parts: dict[str, Any] = {
            "states": states_of(objects),
            "variables": held_values(held, is_random=False),
            "random": {
                **random_state(),
                "framework": framework.random_state(network.models),
                "generators": held_values(held, is_random=True),
            },
        }
        network._warn_of_unsaved_state()
        if rank:
            rank_parts = encode(rank_parts, f"ranks/{rank}", blocks, framework.to_block)
    # Every rank takes part in gathering the shards of a model.
    models = {name_of(model): framework.model_state(model) for model in network.models}
    ranks = [] if processes is None else processes.gather_object((rank_parts, blocks)) or []
    with raise_on_all_ranks(processes, "Saving a checkpoint"):
        if rank == 0:
            parts = {
                "version": _VERSION,
                "framework": network.target_type,
                "epoch": int(epoch),
                "step": int(step),
                "values": dict(values or {}),
                "models": models,
                "current": {
                    name_of(model): current_optimizer_index(model) for model in network.models
                },
                **rank_parts,
            }
            content = {
                part: encode(value, part, blocks, framework.to_block)
                for part, value in parts.items()
            }
            content["ranks"] = [encoded for encoded, _ in ranks[1:]]
            for _, rank_blocks in ranks[1:]:
                blocks.update(rank_blocks)
            write_atomically(name, partial(write_archive, content=content, blocks=blocks))
    return name


def load_checkpoint(
    path: str | os.PathLike[str],
    network: BaseNetwork,
    *,
    stateful: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Restore the state that `save_checkpoint` saved. Nothing in the file is executed.

    If loading fails or is interrupted, everything is restored to what it was, on every process.

    In distributed training all processes call this at the same time with the same path. The number
    of processes may differ from that of the save: models are saved whole; each process gets the
    states of its rank, or those of rank 0 without the random numbers; and gradients that each
    process had merged are averaged.

    Parameters become trainable or frozen as they were. A generator or variable that only the file
    or only the program has is left alone, with a warning.

    The optimizer that a scheduler had chosen becomes the current one, unless the network is open.
    Random numbers of devices that do not exist are ignored, and so is the state of a gradient
    scaler where there is none.

    Args:
        path: The file.
        network: A network of the same ops and models, made by the same code. Models may be wrapped
            differently (compiled, DataParallel, DDP, FSDP2).
        stateful: The objects that were given to `save_checkpoint`, by the same names.

    Returns:
        The epoch, the step and the values that were given to `save_checkpoint`.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the file cannot be read.
        ValueError: If the file is damaged, or does not fit the network.
        RankError: If another process has failed to do so.
    """
    _check_arguments("load_checkpoint", network, stateful=stateful)
    processes = processes_of(network.target_type)
    with ExitStack() as undo, raise_on_all_ranks(processes, "Loading a checkpoint"):
        objects = _find_objects(network, stateful, "load_checkpoint")
        name = find_file(path, "checkpoint", FileNotFoundError)
        return _load(name, network, objects, processes, undo)


def _load(
    name: str,
    network: BaseNetwork,
    objects: Mapping[str, Any],
    processes: Processes | None,
    undo: ExitStack,
) -> Checkpoint:
    framework = get_framework(network.target_type)
    rank, size = (0, 1) if processes is None else (processes.rank(), processes.world_size())
    refuse_weights(name)
    with open_archive(name, f"The checkpoint '{name}'") as archive:
        content = _read(framework, rank, size, archive)
    try:
        saved_by = _FRAMEWORKS[content["framework"]]
        loaded_by = _FRAMEWORKS[network.target_type]
        if saved_by != loaded_by:
            raise ValueError(
                f"a {saved_by} network saved it, and a {loaded_by} network cannot load it"
            )
        if content["version"] != _VERSION:
            raise ValueError(f"its format is version {content['version']}, not {_VERSION}")
        saved = content["models"]
        models = {name_of(model): model for model in network.models}
        if models.keys() != saved.keys():
            raise ValueError(
                f"it has models named {sorted(saved)}, where the network has {sorted(models)}. "
                "Build the models with the names that they were saved with"
            )
        undo.enter_context(restored_afterwards(network, objects, only_on_error=True))
        for model_name, model in models.items():
            saved_count = len(saved[model_name]["optimizers"])
            count = len(optimizers_of(model))
            if saved_count != count:
                raise ValueError(
                    f"the number of optimizers of model '{model_name}' was {saved_count} when it "
                    f"was saved, but is {count}. Build the model with those that were saved"
                )
            framework.load_model_state(model, saved[model_name])
            index = content["current"][model_name]
            # In an open network the epoch decides.
            if index is not None and network._session is None:
                set_metadata(model, "current_optimizer", optimizers_of(model)[index])
        load_states(objects, content["states"])
        held = find_held(network)
        load_held(held, content["variables"], is_random=False)
        if content["random"]:
            load_held(held, content["random"]["generators"], is_random=True)
            framework.load_random_state(network.models, content["random"]["framework"])
            # The framework may draw from Python's generator when it makes its own.
            load_random_state(content["random"])
        return Checkpoint(content["epoch"], content["step"], content["values"])
    except Exception as error:  # Objects of the program may raise anything.
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"The checkpoint '{name}' does not fit the network: {reason.rstrip('.')}."
        ) from error


def _read(framework: Framework, rank: int, size: int, archive: Archive) -> dict[str, Any]:
    """Return the content of a file for a rank."""
    make: dict[str, Any] = {
        "array": lambda key: block_to_array(archive.read(key)),
        **framework.tensor_makers(archive.read),
    }
    other_parts = archive.content.pop("ranks")
    parts = {part: decode(value, make) for part, value in archive.content.items()}
    return state_for_rank(parts, other_parts, rank, size, lambda part: decode(part, make))


def _check_arguments(function: str, network: BaseNetwork, **mappings: Any) -> None:
    if not hasattr(network, "target_type"):
        raise ValueError(f"{function} takes a Network, not {shorten(network)}.")
    for name, value in mappings.items():
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(
                f"{function}'s {name} is a dict of objects by name, not {shorten(value)}."
            )


def _find_objects(
    network: BaseNetwork, stateful: Mapping[str, Any] | None, function: str
) -> dict[str, Any]:
    """Find the stateful objects of a network and of the program, by their paths."""
    for name, item in (stateful or {}).items():
        if isinstance(item, type):
            raise ValueError(
                f"{function} is given the class {item.__name__} as stateful/{name}. Pass an object."
            )
        if not is_stateful(item):
            raise ValueError(
                f"{function} is given {type(item).__name__} as stateful/{name}, which has no "
                "state_dict and load_state_dict. Put plain values, such as a generator's "
                "get_state(), into `values` of save_checkpoint."
            )
    return find_stateful(network, stateful or {})
