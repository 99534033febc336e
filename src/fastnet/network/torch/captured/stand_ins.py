"""Tensors without values in the places of parameters, buffers and what optimizers remember."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch

from fastnet.backend.model_metadata import every_optimizer_of, holder_of
from fastnet.backend.torch._internals import tables_of
from fastnet.network.torch.captured.observing import Uncapturable
from fastnet.network.torch.captured.rules import Group
from fastnet.network.torch.captured.scaling import (
    RefusedScaler,
    ScalerInTrace,
    numbers_of,
    tensors_of,
)
from fastnet.network.torch.captured.updates import Rule, rule_of

__all__ = ["Remembered", "State"]


class Remembered:
    """What a captured step takes of an optimizer.

    Args:
        optimizer: The optimizer.
        first: The place of its first number among those of all optimizers.

    Attributes:
        optimizer: The optimizer.
        rule: How it updates.
        first: That place.
        scaler: What scales the loss, or None. Others may share it.
        settings: What must stay as it is, for each group.
        told: What it remembers of which parameter.

    Raises:
        Uncapturable: If a captured step cannot do what it does.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, first: int) -> None:
        self.optimizer = optimizer
        self.rule: Rule = rule_of(optimizer)
        self.scaler: Any = getattr(optimizer, "scaler", None)
        self.first = first
        self.settings = self.settings_now()
        self.told = self.places_told()

    def settings_now(self) -> list[Any]:
        """List what of its groups must stay as it is, with which parameters they are of."""
        return [
            id(self.scaler),
            *(
                (self.rule.settings_of(group), [id(one) for one in group["params"]])
                for group in self.optimizer.param_groups
            ),
        ]

    def numbers(self) -> list[float]:
        """List the numbers of its groups, as they are now."""
        groups = map(self.rule.numbers_of, self.optimizer.param_groups)
        return list(chain.from_iterable(groups))

    def tensors(self) -> list[torch.Tensor]:
        """List what it remembers of its parameters, as it is now.

        Raises:
            Uncapturable: If something else than tensors is among that.
        """
        found: list[torch.Tensor] = []
        for parameter, name in self.places():
            value = self.optimizer.state[parameter][name]
            if type(value) is not torch.Tensor:
                raise Uncapturable(
                    f"`{name}` in the state of {type(self.optimizer).__name__} is of type "
                    f"{type(value).__name__}"
                )
            found.append(value)
        return found

    def places_told(self) -> list[tuple[int, str]]:
        """List what it remembers of which parameter, for another list to be compared."""
        return [(id(parameter), name) for parameter, name in self.places()]

    def places(self) -> list[tuple[torch.Tensor, str]]:
        """List the parameters, and under which names something is remembered of each."""
        optimizer = self.optimizer
        return [
            (parameter, name)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in optimizer.state
            for name in self.rule.remembers(group, parameter)
            if name in optimizer.state[parameter]
        ]


class State:
    """The tensors that a step of some models reads and writes, wherever its batch comes from.

    Args:
        models: The models.
        training: Whether their optimizers belong to it.
        device: Where the step runs.

    Attributes:
        device: Where the step runs.
        tensors: The parameters and buffers, and then what optimizers and scalers remember.
        parameters: The parameters among them.
        remembered: What is taken of the optimizers, by their ids.
        refused: Why an optimizer cannot be captured, by its id.
        taken: How many steps each optimizer has taken since others were put into its places, by id.
        settings_read: Whether anything was read of the settings of an optimizer meanwhile.

    Raises:
        Uncapturable: If there is something that cannot be captured.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], training: bool, device: torch.device
    ) -> None:
        self.device = device
        self._places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self.tensors: list[torch.Tensor] = []
        self.remembered: dict[int, Remembered] = {}
        self.refused: dict[int, str] = {}
        self.taken: dict[int, int] = {}
        self.settings_read = False
        self._optimizers: list[torch.optim.Optimizer] = []
        known: dict[int, torch.Tensor] = {}
        for module in {id(one): one for model in models for one in model.modules()}.values():
            if isinstance(module, torch.jit.ScriptModule):
                raise Uncapturable(f"{type(module).__name__} is a scripted module")
            for table in tables_of(module):
                for name, tensor in table.items():
                    if tensor is not None:
                        self._places.append((table, name, tensor))
                        known[id(tensor)] = tensor
        self._holders = [holder_of(model, "current_optimizer") for model in models if training]
        self._in_force = self._optimizers_now()
        for optimizer in self._in_force:
            if optimizer is None or any(optimizer is one for one in self._optimizers):
                continue
            self._optimizers.append(optimizer)
            for group in optimizer.param_groups:
                known.update((id(one), one) for one in group["params"])
        # those that no step of these takes part in
        self._others = [
            optimizer
            for model in models
            for optimizer in every_optimizer_of(model)
            if all(optimizer is not one for one in self._optimizers)
        ]
        self.tensors = list(known.values())
        self.parameters = [one for one in self.tensors if isinstance(one, torch.nn.Parameter)]
        numbers = 0
        for optimizer in self._optimizers:
            try:
                remembered = Remembered(optimizer, numbers)
                remembered.tensors()
                if remembered.scaler is not None:
                    tensors_of(remembered.scaler)
            except Uncapturable as error:
                self.refused[id(optimizer)] = str(error)
                continue
            numbers += len(remembered.numbers())
            self.remembered[id(optimizer)] = remembered
        scalers = [one.scaler for one in self.remembered.values() if one.scaler is not None]
        # each once, whichever optimizers share it
        self._scalers = list({id(one): one for one in scalers}.values())
        self._scalers_in_trace: dict[int, ScalerInTrace] = {}
        self.tensors += self.tensors_remembered()
        self._require_plain(len(known))

    def tensors_remembered(self) -> list[torch.Tensor]:
        """List what optimizers remember, and then what their scalers do, as it is now.

        Raises:
            Uncapturable: If something of it cannot be captured.
        """
        optimizers = [one.tensors() for one in self.remembered.values()]
        return list(chain.from_iterable([*optimizers, *map(tensors_of, self._scalers)]))

    def _optimizers_now(self) -> list[Any]:
        return [getattr(holder, "current_optimizer", None) for holder in self._holders]

    def has_other_optimizers(self) -> bool:
        """Return whether another optimizer is in force for one of the models."""
        for holder, optimizer in zip(self._holders, self._in_force, strict=True):
            if getattr(holder, "current_optimizer", None) is not optimizer:
                return True
        return False

    def _require_plain(self, count: int) -> None:
        """Refuse what a graph cannot take.

        Args:
            count: How many of the tensors are parameters and buffers.
        """
        memory: dict[int, int] = {}
        for at, tensor in enumerate(self.tensors):
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise Uncapturable(f"a parameter or a buffer is of type {type(tensor).__name__}")
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
                raise Uncapturable(f"a parameter or a buffer is of {tensor.dtype}, {tensor.layout}")
            # what optimizers count stays on the CPU, wherever parameters are
            is_count = at >= count and tensor.device.type == "cpu" and not tensor.dim()
            if tensor.device != self.device and not is_count:
                what = "a parameter or a buffer" if at < count else "what an optimizer remembers"
                raise Uncapturable(f"{what} is on {tensor.device}")
            if not tensor.is_leaf:
                raise Uncapturable("a parameter or a buffer has a graph")
            place = tensor.untyped_storage().data_ptr()
            if place and memory.setdefault(place, id(tensor)) != id(tensor):
                raise Uncapturable("two parameters or buffers share memory")

    def stand_ins(self, fakes: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return what stands for which of the tensors, by the ids of these.

        Args:
            fakes: A tensor for each of `tensors`.
        """
        return {id(tensor): fake for tensor, fake in zip(self.tensors, fakes, strict=True)}

    def numbers(self) -> list[float]:
        """List the numbers of all optimizers, and then of their scalers, as they are now."""
        optimizers = [one.numbers() for one in self.remembered.values()]
        return list(chain.from_iterable([*optimizers, *map(numbers_of, self._scalers)]))

    @contextmanager
    def swapped(self, fakes: list[torch.Tensor], numbers: torch.Tensor) -> Iterator[None]:
        """Put other tensors into the places of those that there are, and have updates write there.

        Args:
            fakes: A tensor for each of `tensors`.
            numbers: What stands for the optimizers' numbers.
        """
        by_id = self.stand_ins(fakes)
        self.taken, self.settings_read = {}, False
        with ExitStack() as stack:
            for table, name, tensor in self._places:
                # in its place in the order of the table, too
                stack.callback(table.__setitem__, name, tensor)
                table[name] = by_id[id(tensor)]
            place = len(self.numbers())
            self._scalers_in_trace = {}
            for scaler in reversed(self._scalers):
                place -= len(numbers_of(scaler))
                inside = [by_id[id(one)] for one in tensors_of(scaler)]
                self._scalers_in_trace[id(scaler)] = ScalerInTrace(inside, (numbers, place))
            for optimizer in self._optimizers:
                self._swap_optimizer(stack, optimizer, by_id, numbers)
            for optimizer in self._others:
                self._swap_groups(stack, optimizer, optimizer.param_groups)
            yield

    def require_settled(self) -> None:
        """Refuse what running the ops would leave to the next step, while others were there.

        Raises:
            Uncapturable: If there is something.
        """
        for scaler in self._scalers_in_trace.values():
            scaler.require_settled()

    def first_replaced(self, fakes: list[torch.Tensor]) -> str | None:
        """Name a parameter or a buffer that running the ops has replaced, while others are there.

        Args:
            fakes: A tensor for each of `tensors`.

        Returns:
            Its name; None if each is still in its place.
        """
        by_id = self.stand_ins(fakes)
        for table, name, tensor in self._places:
            if table.get(name) is not by_id[id(tensor)]:
                return name
        return None

    def _swap_groups(
        self, stack: ExitStack, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
    ) -> None:
        own = vars(optimizer)
        stack.callback(own.__setitem__, "param_groups", own["param_groups"])
        own["param_groups"] = [_Noticing(group, self._note_reading) for group in groups]
        stack.callback(own.__setitem__, "state", own["state"])
        own["state"] = _Noticing({}, self._note_reading)

    def _note_reading(self) -> None:
        self.settings_read = True

    def _swap_optimizer(
        self,
        stack: ExitStack,
        optimizer: torch.optim.Optimizer,
        by_id: dict[int, torch.Tensor],
        numbers: torch.Tensor,
    ) -> None:
        remembered = self.remembered.get(id(optimizer))
        states: dict[int, dict[str, torch.Tensor]] = {}
        if remembered is not None:
            for parameter, name in remembered.places():
                real = optimizer.state[parameter][name]
                states.setdefault(id(by_id[id(parameter)]), {})[name] = by_id[id(real)]
        groups = [
            {**group, "params": [by_id[id(one)] for one in group["params"]]}
            for group in optimizer.param_groups
        ]
        own = vars(optimizer)
        self._swap_groups(stack, optimizer, groups)
        if "step" in own:
            stack.callback(own.__setitem__, "step", own["step"])
        else:
            stack.callback(own.pop, "step")

        def step(overflown: torch.Tensor | None = None) -> None:
            if remembered is None:
                raise Uncapturable(self.refused[id(optimizer)])
            self.taken[id(optimizer)] = self.taken.get(id(optimizer), 0) + 1
            _update(remembered, groups, states, numbers, overflown)

        own["step"] = step
        scaler = own.get("scaler")
        if scaler is None:
            return
        stack.callback(own.__setitem__, "scaler", scaler)
        if remembered is None:
            own["scaler"] = RefusedScaler(self.refused[id(optimizer)])
            return
        own["scaler"] = self._scalers_in_trace[id(scaler)]
        own["scaler"].scales_for(optimizer, step)


class _Noticing(dict[Any, Any]):
    """Settings or a state of an optimizer, which tell of it when they are looked at.

    Args:
        entries: What is in them, of which "params" may be looked up.
        note: Called when anything else is looked up, or written.
    """

    def __init__(self, entries: dict[Any, Any], note: Callable[[], None]) -> None:
        super().__init__(entries)
        self._note = note

    def __missing__(self, key: Any) -> Any:
        return {}

    def __contains__(self, key: Any) -> bool:
        self._note()
        return super().__contains__(key)

    def __len__(self) -> int:
        self._note()
        return super().__len__()

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str) or key != "params":
            self._note()
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note()
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[Any]:
        self._note()
        return super().__iter__()

    def get(self, key: Any, default: Any = None) -> Any:
        self._note()
        return super().get(key, default)

    def keys(self) -> Any:
        self._note()
        return super().keys()

    def values(self) -> Any:
        self._note()
        return super().values()

    def items(self) -> Any:
        self._note()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._note()
        return super().copy()

    def update(self, *args: Any, **named: Any) -> None:
        self._note()
        super().update(*args, **named)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._note()
        return super().setdefault(key, default)


def _update(
    remembered: Remembered,
    groups: Sequence[dict[str, Any]],
    states: dict[int, dict[str, torch.Tensor]],
    numbers: torch.Tensor,
    overflown: torch.Tensor | None,
) -> None:
    rule, place = remembered.rule, remembered.first
    # counts on the CPU go by it there: it is brought to them once
    passed_over: dict[torch.device, torch.Tensor] = {}
    with torch.no_grad():
        for group in groups:
            named = {name: numbers[place + at] for at, name in enumerate(rule.numbers)}
            place += len(rule.numbers)
            trained = [one for one in group["params"] if one.grad is not None]
            for parameter in trained:
                if parameter.grad.layout is not torch.strided:
                    raise Uncapturable(f"a gradient is of {parameter.grad.layout}")
                state = states.get(id(parameter), {})
                missing = sorted(set(rule.remembers(group, parameter)) - state.keys())
                if missing:
                    raise Uncapturable(f"{rule.kind.__name__} does not yet remember {missing}")
                told = Group(named, rule.settings_of(group), trained[0].dtype)
                if overflown is None:
                    rule.update(parameter, parameter.grad, state, told)
                    continue
                own = parameter.detach().clone()
                after = {name: one.clone() for name, one in state.items()}
                rule.update(own, parameter.grad, after, told)
                changes = [(parameter, own), *((one, after[name]) for name, one in state.items())]
                for one, changed in changes:
                    if one.device not in passed_over:
                        passed_over[one.device] = overflown.to(one.device)
                    one.copy_(torch.where(passed_over[one.device], one, changed))
