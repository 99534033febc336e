"""All that a run needs to go on, in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet.backend.archive import Archive, Block, write_archive
from fastnet.backend.dispatch import backend_module
from fastnet.backend.files import write_whole
from fastnet.backend.model_metadata import (
    current_place,
    get_metadata,
    name_of,
    optimizers_of,
    set_metadata,
)
from fastnet.backend.tree import array_from, decode, encode
from fastnet.distributed import processes_of
from fastnet.network import random_state as random
from fastnet.network.rank_states import RANKS, collect_ranks, of_rank
from fastnet.network.stateful import (
    GIVEN,
    check_states,
    find_stateful,
    kept_states,
    load_states,
    states_of,
)
from fastnet.op.checks import is_int

if TYPE_CHECKING:
    from fastnet.network.base import BaseNetwork

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

_FORM = 1


class Checkpoint(NamedTuple):
    """What a checkpoint says of the run that it is of."""

    epoch: int
    """The epoch that was given."""
    step: int
    """The step that was given."""
    values: dict[str, Any]
    """The values that were given."""


def save_checkpoint(
    path: str | os.PathLike[str],
    network: BaseNetwork,
    *,
    epoch: int = 0,
    step: int = 0,
    values: Mapping[str, Any] | None = None,
    stateful: Mapping[str, Any] | None = None,
) -> str:
    """Save all that a run needs to go on as if it had not stopped, in one file.

    These are the weights of the network's models; what their optimizers remember, every one of a
    scheduled one, and the scales of losses; what ops, slicers and schedulers of the network
    remember, such as gradients that are merged but not used yet: whatever has a `state_dict` and a
    `load_state_dict`; and the states of the random numbers of Python, numpy and the framework.

    Of several processes the first one writes, and all of them call this, at the same time: each has
    random numbers and merged gradients of its own, and a part of a model that is sharded. The path
    is the same on all. So there is no `if distributed.is_main():` around it.

    The file is written whole, or stays as it was before, even if the process is killed. Its layout
    is that of safetensors.

    Args:
        path: The file; its folder is made if it is not there.
        network: The network, between two steps.
        epoch: The epoch that the run is in, or has ended, as the program counts.
        step: The step, likewise.
        values: More for the program itself: None, bools, numbers, strings, and lists, tuples, sets,
            dicts, arrays and tensors of these.
        stateful: Whatever else has a `state_dict` and a `load_state_dict`, by name: schedules of
            learning rates in torch, samplers.

    Returns:
        The path.

    Raises:
        TypeError: If something remembers what a file cannot hold.
        ValueError: If `epoch` or `step` is no int of at least 0, something of `stateful` has no
            state, or a model has no variables yet.
        OSError: If the file cannot be written.
        RankError: If another process is elsewhere in the program, has another path, or has failed.

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
    name = _path_of(path)
    run = _run_of(network)
    processes = processes_of(network.target_type)
    _meet(processes, f"save_checkpoint({name!r})")
    with _together(processes):
        things = _things_of(network, stateful, "save_checkpoint")
        own = {
            "states": states_of(things),
            "random": {**random.random_state(), "framework": run.random_state(network.models)},
        }
    content = {
        "form": _FORM,
        "framework": network.target_type,
        "epoch": int(epoch),
        "step": int(step),
        "values": dict(values or {}),
        # of a model that is sharded each process gives its part
        "models": {name_of(model): run.state_of_model(model) for model in network.models},
        "current": {name_of(model): current_place(model) for model in network.models},
        **own,
    }
    others = collect_ranks(processes, own, run)
    with _together(processes):
        if processes is None or processes.rank() == 0:
            blocks: dict[str, Block] = {}
            told = {part: encode(value, part, blocks, run.give) for part, value in content.items()}
            if others:
                told[RANKS] = [one for one, _ in others]
                for _, more in others:
                    blocks.update(more)
            write_whole(name, partial(write_archive, content=told, blocks=blocks))
    return name


def load_checkpoint(
    path: str | os.PathLike[str],
    network: BaseNetwork,
    *,
    stateful: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Let a run go on from where `save_checkpoint` was called. Nothing in the file is executed.

    Of several processes all call this, with the same path, at the same time.

    Everything in the file is checked before the first of it counts. If something fails all the
    same, all is as it was before, on every one of several processes. There may be more of them or
    fewer than have saved: models are whole in the file, each process goes on from the states that
    the one of its rank had, or else the first one (but for random numbers), and gradients that each
    had merged are averaged.

    Args:
        path: The file.
        network: A network of the same ops on the same models, made by the same code; models may be
            wrapped otherwise (by `torch.compile`, or to be spread over devices).
        stateful: What was given to `save_checkpoint`, or the like, by the same names.

    Returns:
        The epoch, the step and the values that were given to `save_checkpoint`.

    Raises:
        ValueError: If there is no such file, or it is damaged, of another kind, or of another
            network.
        RankError: If another process is elsewhere in the program, has another path, or has failed.

    Which of a model's scheduled optimizers is in force is saved too, but each gets its own state
    back, whichever epoch is opened next. States of devices that are not there are passed over, and
    so is the scale of a loss where none is scaled.
    """
    name = _path_of(path)
    source = f"The checkpoint '{name}'"
    run = _run_of(network)
    processes = processes_of(network.target_type)
    _meet(processes, f"load_checkpoint({name!r})")
    with ExitStack() as kept, _together(processes, "Loading a checkpoint"):
        return _load(name, network, stateful, run, processes, source, kept)


def _load(
    name: str,
    network: BaseNetwork,
    stateful: Mapping[str, Any] | None,
    run: Any,
    processes: Any,
    source: str,
    kept: ExitStack,
) -> Checkpoint:
    if not os.path.isfile(name):
        raise ValueError(f"There is no checkpoint '{name}'. Check the path.")
    things = _things_of(network, stateful, "load_checkpoint")
    place = (0, 1) if processes is None else (processes.rank(), processes.world_size())
    with open(name, "rb") as file:
        with _readable(name):
            archive = Archive(file)
            # at first without the numbers, of which there may be more than there is room for
            content = _decode(archive, run, lambda key: Block(*archive.shapes[key], None), place)
        with _readable(name, but_for=ValueError):
            _check(content, network, run, things, source)
        with _readable(name):
            content = _decode(archive, run, archive.read, place)
    with _readable(name, but_for=ValueError):
        models = _check(content, network, run, things, source)
    numbers = content["random"]
    if numbers:
        random.check_random(numbers, source)
        run.check_random(network.models, numbers["framework"], source)
    kept.enter_context(run.kept_random(network.models))
    kept.enter_context(random.kept_random())
    # what UpdateOps remember is read by what their models are
    kept.enter_context(kept_states(things))
    for model in network.models:
        kept.enter_context(_kept_choice(model))
        kept.enter_context(run.kept_model(model))
    for model in network.models:
        _choose(model, content["current"][name_of(model)], network)
        run.load_model(model, models[name_of(model)], source)
    _load_states(things, content["states"], source)
    if numbers:
        random.load_random(numbers)
        run.load_random(network.models, numbers["framework"])
    return Checkpoint(content["epoch"], content["step"], content["values"])


def _meet(processes: Any, call: str) -> None:
    """Wait for all processes, if the framework has a way for them to see where each is."""
    if hasattr(processes, "meet"):
        processes.meet(call)


def _together(processes: Any, task: str = "Saving a checkpoint") -> AbstractContextManager[None]:
    """Let all processes fail where one does, if the framework has a way for them to know."""
    return processes.together(task) if hasattr(processes, "together") else nullcontext()


def _check(
    content: Any, network: BaseNetwork, run: Any, things: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Check that a file is of a network; give the states of its models as these take them."""
    if content.get("form") != _FORM or content["framework"] != network.target_type:
        raise ValueError(
            f"{source} is of the form {content.get('form')!r} for {content.get('framework')!r}, "
            f"where this is {_FORM} for {network.target_type!r}. Load it with the version of "
            "fastnet, and in the framework, that it was saved with."
        )
    own, saved = sorted(name_of(one) for one in network.models), sorted(content["models"])
    if own != saved:
        raise ValueError(
            f"{source} is of models named {saved}, but those of the network are {own}. Build the "
            "models with the names that they were saved with."
        )
    check_states(things, content["states"], source)
    models = {}
    for model in network.models:
        models[name_of(model)] = run.check_model(model, content["models"][name_of(model)], source)
        place = content["current"][name_of(model)]
        if place is not None and not (is_int(place) and 0 <= place < len(optimizers_of(model))):
            raise ValueError(
                f"{source} has optimizer {place!r} in force for model '{name_of(model)}', which "
                "is none of those that it has. Save it anew."
            )
    return models


def _load_states(things: Mapping[str, Any], states: Mapping[str, Any], source: str) -> None:
    try:
        load_states(things, states)
    except Exception as error:
        raise ValueError(f"{source} has a state that cannot be gone on from: {error}") from error


@contextmanager
def _readable(name: str, but_for: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Tell of what makes a file unreadable, but for errors that tell it themselves."""
    try:
        yield
    except but_for:
        raise
    except Exception as error:  # a damaged file raises errors of many types
        raise ValueError(
            f"The checkpoint '{name}' is damaged, or was not written by fastnet: it cannot be read "
            f"({error!r}). Load another one."
        ) from error


def _choose(model: Any, place: int | None, network: BaseNetwork) -> None:
    """Put the optimizer in force that was; while a network is open it is that of its epoch."""
    if place is not None and network._context is None:
        set_metadata(model, "current_optimizer", optimizers_of(model)[place])


@contextmanager
def _kept_choice(model: Any) -> Iterator[None]:
    """Leave the optimizer in force that is if something fails meanwhile."""
    before = get_metadata(model, "current_optimizer")
    try:
        yield
    except BaseException:
        set_metadata(model, "current_optimizer", before)
        raise


def _decode(
    archive: Archive, run: Any, read: Callable[[str], Block], place: tuple[int, int]
) -> dict[str, Any]:
    make = {"tensor": lambda key: run.make(read(key)), "array": lambda key: array_from(read(key))}
    content = of_rank(archive.content, *place, lambda told: decode(told, make))
    _require_parts(content)
    return content


def _require_parts(content: dict[str, Any]) -> None:
    kinds = {
        "framework": str,
        "epoch": int,
        "step": int,
        "values": dict,
        "models": dict,
        "current": dict,
        "states": dict,
        "random": dict,
    }
    for part, kind in kinds.items():
        if not isinstance(content[part], kind):
            raise ValueError(f"its {part} is of the type {type(content[part]).__name__}")


def _path_of(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A checkpoint's path is a string, not {path!r} of type {type(path).__name__}."
        )
    return os.fspath(path)


def _run_of(network: BaseNetwork) -> Any:
    return backend_module(network.target_type, "run_state")


def _things_of(
    network: BaseNetwork, stateful: Mapping[str, Any] | None, function: str
) -> dict[str, Any]:
    given = {f"{GIVEN}{name}": thing for name, thing in (stateful or {}).items()}
    for name, thing in (stateful or {}).items():
        if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            continue
        advice = "Put plain values into `values` of save_checkpoint."
        if hasattr(thing, "get_state") and hasattr(thing, "set_state"):
            advice = (
                f"Save its state by `values={{{name!r}: {name}.get_state()}}`, and give it back by "
                f"`{name}.set_state(checkpoint.values[{name!r}])`."
            )
        raise ValueError(
            f"{function} is given {type(thing).__name__} as {GIVEN}{name}, which has no state_dict "
            f"and load_state_dict. {advice}"
        )
    return find_stateful(
        {
            "ops": network.ops,
            "postprocessing": network.postprocessing,
            "slicers": network.slicers,
            **given,
        },
        [model.optimizer for model in network.models],
    )
