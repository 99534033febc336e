"""Tensors without values in the places of parameters, buffers and what optimizers remember."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fastnet.backend.facts import holder_of
from fastnet.backend.torch._internals import tables_of
from fastnet.network.torch.captured.observing import Uncapturable
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
        settings: What must stay as it is, for each group.
        told: What it remembers of which parameter.

    Raises:
        Uncapturable: If a captured step cannot do what it does.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, first: int) -> None:
        self.optimizer = optimizer
        self.rule: Rule = rule_of(optimizer)
        self.first = first
        self.settings = self.settings_now()
        self.told = self.places_told()

    def settings_now(self) -> list[Any]:
        """List what of its groups must stay as it is, with which parameters they are of."""
        return [
            (self.rule.settings_of(group), [id(one) for one in group["params"]])
            for group in self.optimizer.param_groups
        ]

    def numbers(self) -> list[float]:
        """List the numbers of its groups, as they are now."""
        return [
            number
            for group in self.optimizer.param_groups
            for number in self.rule.numbers_of(group)
        ]

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
            for name in self.rule.remembers(group)
            if name in optimizer.state[parameter]
        ]


class State:
    """The tensors that a step of some models reads and writes, wherever its batch comes from.

    Args:
        models: The models.
        training: Whether their optimizers belong to it.

    Attributes:
        tensors: The parameters and buffers, and then what optimizers remember.
        parameters: The parameters among them.
        remembered: What is taken of the optimizers, by their ids.
        refused: Why an optimizer cannot be captured, by its id.

    Raises:
        Uncapturable: If there is something that cannot be captured.
    """

    def __init__(self, models: Sequence[torch.nn.Module], training: bool) -> None:
        self._places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self.tensors: list[torch.Tensor] = []
        self.remembered: dict[int, Remembered] = {}
        self.refused: dict[int, str] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        known: dict[int, torch.Tensor] = {}
        for module in {id(one): one for model in models for one in model.modules()}.values():
            if isinstance(module, torch.jit.ScriptModule):
                raise Uncapturable(f"{type(module).__name__} is a scripted module")
            for table in tables_of(module) or [{}]:
                for name, tensor in table.items():
                    if tensor is not None:
                        self._places.append((table, name, tensor))
                        known[id(tensor)] = tensor
            if tables_of(module) is None:
                raise Uncapturable(f"the parameters of {type(module).__name__} are out of reach")
        self._holders = [holder_of(model, "current_optimizer") for model in models if training]
        self._in_force = self._optimizers_now()
        for optimizer in self._in_force:
            if optimizer is None or any(optimizer is one for one in self._optimizers):
                continue
            self._optimizers.append(optimizer)
            for group in optimizer.param_groups:
                known.update((id(one), one) for one in group["params"])
        self.tensors = list(known.values())
        self.parameters = [one for one in self.tensors if isinstance(one, torch.nn.Parameter)]
        numbers = 0
        for optimizer in self._optimizers:
            try:
                remembered = Remembered(optimizer, numbers)
                self.tensors += remembered.tensors()
            except Uncapturable as error:
                self.refused[id(optimizer)] = str(error)
                continue
            numbers += len(remembered.numbers())
            self.remembered[id(optimizer)] = remembered
        self._require_plain()

    def _optimizers_now(self) -> list[Any]:
        return [getattr(holder, "current_optimizer", None) for holder in self._holders]

    def has_other_optimizers(self) -> bool:
        """Return whether another optimizer is in force for one of the models."""
        for holder, optimizer in zip(self._holders, self._in_force, strict=True):
            if getattr(holder, "current_optimizer", None) is not optimizer:
                return True
        return False

    def _require_plain(self) -> None:
        memory: dict[int, int] = {}
        for tensor in self.tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise Uncapturable(f"a parameter or a buffer is of type {type(tensor).__name__}")
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
                raise Uncapturable(f"a parameter or a buffer is of {tensor.dtype}, {tensor.layout}")
            if tensor.device.type != "cpu":
                raise Uncapturable(f"a parameter or a buffer is on {tensor.device}")
            if not tensor.is_leaf:
                raise Uncapturable("a parameter or a buffer has a graph")
            place = tensor.untyped_storage().data_ptr()
            if place and memory.setdefault(place, id(tensor)) != id(tensor):
                raise Uncapturable("two parameters or buffers share memory")

    def numbers(self) -> list[float]:
        """List the numbers of all optimizers, as they are now."""
        return [number for one in self.remembered.values() for number in one.numbers()]

    @contextmanager
    def swapped(self, fakes: list[torch.Tensor], numbers: torch.Tensor) -> Iterator[None]:
        """Put other tensors into the places of those that there are, and have updates write there.

        Args:
            fakes: A tensor for each of `tensors`.
            numbers: What stands for the optimizers' numbers.
        """
        by_id = {id(tensor): fake for tensor, fake in zip(self.tensors, fakes, strict=True)}
        with ExitStack() as stack:
            for table, name, tensor in self._places:
                # in its place in the order of the table, too
                stack.callback(table.__setitem__, name, tensor)
                table[name] = by_id[id(tensor)]
            for optimizer in self._optimizers:
                self._swap_optimizer(stack, optimizer, by_id, numbers)
            yield

    def first_replaced(self, fakes: list[torch.Tensor]) -> str | None:
        """Name a parameter or a buffer that running the ops has replaced, while others are there.

        Args:
            fakes: A tensor for each of `tensors`.

        Returns:
            Its name; None if each is still in its place.
        """
        by_id = {id(tensor): fake for tensor, fake in zip(self.tensors, fakes, strict=True)}
        for table, name, tensor in self._places:
            if table.get(name) is not by_id[id(tensor)]:
                return name
        return None

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
        for group in optimizer.param_groups:
            stack.callback(group.__setitem__, "params", group["params"])
            group["params"] = [by_id[id(one)] for one in group["params"]]
        own = vars(optimizer)
        if "step" in own:
            stack.callback(own.__setitem__, "step", own["step"])
        else:
            stack.callback(own.pop, "step")

        def step() -> None:
            if remembered is None:
                raise Uncapturable(self.refused[id(optimizer)])
            _update(remembered, states, numbers)

        own["step"] = step


def _update(
    remembered: Remembered, states: dict[int, dict[str, torch.Tensor]], numbers: torch.Tensor
) -> None:
    rule, place = remembered.rule, remembered.first
    with torch.no_grad():
        for group in remembered.optimizer.param_groups:
            named = {name: numbers[place + at] for at, name in enumerate(rule.numbers)}
            place += len(rule.numbers)
            wanted = set(rule.remembers(group))
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.layout is not torch.strided:
                    raise Uncapturable(f"a gradient is of {parameter.grad.layout}")
                state = states.get(id(parameter), {})
                if not wanted <= state.keys():
                    missing = sorted(wanted - state.keys())
                    raise Uncapturable(f"{rule.kind.__name__} does not yet remember {missing}")
                rule.update(parameter, parameter.grad, state, named, group)
