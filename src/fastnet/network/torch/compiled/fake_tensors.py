"""Fake tensors in the places of parameters, buffers and optimizer state during a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any

import torch

from fastnet.backend.model_metadata import every_optimizer_of, holder_of
from fastnet.backend.torch._internals import scaler_records, tables_of
from fastnet.guards import Snapshot
from fastnet.network.torch.compiled.grad_scaler import (
    RefusedScaler,
    ScalerInTrace,
    numbers_of,
    tensors_of,
)
from fastnet.network.torch.compiled.optimizers import Rule, rule_of
from fastnet.network.torch.compiled.recording import RecordingDict
from fastnet.network.torch.compiled.rules import Group
from fastnet.network.torch.compiled.uncapturable import Uncapturable

__all__ = ["OptimizerState", "StepState"]


class OptimizerState:
    """The state and the settings of an optimizer that a compiled step uses.

    Args:
        optimizer: The optimizer.
        first: The index of its first number among those of all optimizers.

    Attributes:
        rule: How it updates.
        scaler: The GradScaler of its losses, or None. Optimizers may share one.
        settings: The settings that are constants of the program, for each group.
        keys: The ids of parameters and the names of their state tensors.

    Raises:
        Uncapturable: If the step cannot be compiled.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, first: int) -> None:
        self.optimizer = optimizer
        self.rule: Rule = rule_of(optimizer)
        self.scaler: Any = getattr(optimizer, "scaler", None)
        self.first = first
        self.settings = self.settings_now()
        self.keys = [(id(parameter), name) for parameter, name in self.entries()]

    def settings_now(self) -> list[Any]:
        """Return the settings that are constants, with the parameters of each group."""
        return [
            id(self.scaler),
            *(
                (self.rule.settings_of(group), [id(one) for one in group["params"]])
                for group in self.optimizer.param_groups
            ),
        ]

    def guard(self) -> tuple[Snapshot, list[tuple[dict[str, Any], Any]]]:
        """Return a snapshot without the numbers of the groups, and what reads these."""
        names = self.rule.scalars
        groups = self.optimizer.param_groups
        skip: list[tuple[Any, str]] = [(self.optimizer, "_opt_called")]
        skip += [(group, name) for group in groups for name in names]
        roots = [("the optimizer", self.optimizer)]
        if self.scaler is not None:
            roots.append(("the records of its scaler", scaler_records(self.scaler)))
        return Snapshot(roots, skip), [(group, itemgetter(*names)) for group in groups]

    def numbers(self) -> list[float]:
        """Return the numbers of its groups, as they are now."""
        groups = map(self.rule.numbers_of, self.optimizer.param_groups)
        return list(chain.from_iterable(groups))

    def tensors(self) -> list[torch.Tensor]:
        """Return its state tensors, as they are now."""
        found: list[torch.Tensor] = []
        for parameter, name in self.entries():
            value = self.optimizer.state[parameter][name]
            if type(value) is not torch.Tensor:
                raise Uncapturable(
                    f"`{name}` in the state of {type(self.optimizer).__name__} is of type "
                    f"{type(value).__name__}"
                )
            found.append(value)
        return found

    def entries(self) -> list[tuple[torch.Tensor, str]]:
        """List the parameters with the names of their state tensors."""
        optimizer = self.optimizer
        return [
            (parameter, name)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in optimizer.state
            for name in self.rule.state_names(group, parameter)
            if name in optimizer.state[parameter]
        ]


class StepState:
    """The tensors that a step of some models reads and writes, wherever its batch comes from.

    Args:
        models: The models.
        training: Whether the step uses their optimizers.
        device: Where the step runs.

    Attributes:
        tensors: The parameters and buffers, then the state of optimizers and scalers.
        parameters: The parameters among them.
        optimizers: The state of the optimizers, by their ids.
        refused: Why an optimizer cannot be captured, by its id.
        taken: The number of steps that each optimizer has taken in the trace, by id.

    Raises:
        Uncapturable: If there is something that cannot be captured.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], training: bool, device: torch.device
    ) -> None:
        self.device = device
        self.optimizers: dict[int, OptimizerState] = {}
        self.refused: dict[int, str] = {}
        self.taken: dict[int, int] = {}
        self._slots: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._recurrent: list[torch.nn.Module] = []
        known: dict[int, torch.Tensor] = {}
        for module in {id(one): one for model in models for one in model.modules()}.values():
            if isinstance(module, torch.jit.ScriptModule):
                raise Uncapturable(f"{type(module).__name__} is a scripted module")
            if isinstance(module, torch.nn.RNNBase):
                self._recurrent.append(module)
            for table in tables_of(module):
                for name, tensor in table.items():
                    if tensor is not None:
                        self._slots.append((table, name, tensor))
                        known[id(tensor)] = tensor
        self._holders = [holder_of(model, "current_optimizer") for model in models if training]
        self._current = self._current_optimizers()
        self._all = list({id(one): one for one in self._current if one is not None}.values())
        for optimizer in self._all:
            for group in optimizer.param_groups:
                known.update((id(one), one) for one in group["params"])
        self._others = [
            optimizer
            for model in models
            for optimizer in every_optimizer_of(model)
            if all(optimizer is not one for one in self._all)
        ]
        self.tensors = list(known.values())
        self.parameters = [one for one in self.tensors if isinstance(one, torch.nn.Parameter)]
        self._add_optimizers()
        scalers = [one.scaler for one in self.optimizers.values() if one.scaler is not None]
        # Optimizers may share a scaler.
        self._scalers = list({id(one): one for one in scalers}.values())
        self._scalers_in_trace: dict[int, ScalerInTrace] = {}
        self.tensors += self.optimizer_tensors()
        self._check_tensors(len(known))

    def _add_optimizers(self) -> None:
        numbers = 0
        for optimizer in self._all:
            try:
                state = OptimizerState(optimizer, numbers)
                state.tensors()
                if state.scaler is not None:
                    tensors_of(state.scaler)
            except Uncapturable as error:
                self.refused[id(optimizer)] = str(error)
                continue
            numbers += len(state.numbers())
            self.optimizers[id(optimizer)] = state

    def optimizer_tensors(self) -> list[torch.Tensor]:
        """Return the state tensors of optimizers, then of their scalers, as they are now."""
        optimizers = [one.tensors() for one in self.optimizers.values()]
        return list(chain.from_iterable([*optimizers, *map(tensors_of, self._scalers)]))

    def _current_optimizers(self) -> list[Any]:
        return [getattr(holder, "current_optimizer", None) for holder in self._holders]

    def has_other_optimizers(self) -> bool:
        """Return whether a model's current optimizer has been replaced."""
        for holder, optimizer in zip(self._holders, self._current, strict=True):
            if getattr(holder, "current_optimizer", None) is not optimizer:
                return True
        return False

    def _check_tensors(self, count: int) -> None:
        """Refuse tensors that a graph cannot take; the first `count` are parameters and buffers."""
        memory: dict[int, int] = {}
        for index, tensor in enumerate(self.tensors):
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise Uncapturable(f"a parameter or a buffer is of type {type(tensor).__name__}")
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
                raise Uncapturable(f"a parameter or a buffer is of {tensor.dtype}, {tensor.layout}")
            # Optimizers keep their step counts on the CPU, wherever parameters are.
            is_count = index >= count and tensor.device.type == "cpu" and not tensor.dim()
            if tensor.device != self.device and not is_count:
                what = "a parameter or a buffer" if index < count else "the state of an optimizer"
                raise Uncapturable(f"{what} is on {tensor.device}")
            if not tensor.is_leaf:
                raise Uncapturable("a parameter or a buffer has a graph")
            address = tensor.untyped_storage().data_ptr()
            if address and memory.setdefault(address, id(tensor)) != id(tensor):
                raise Uncapturable("two parameters or buffers share memory")

    def by_id(self, fakes: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the fake tensor for each of `tensors`, by the id of the latter."""
        return {id(tensor): fake for tensor, fake in zip(self.tensors, fakes, strict=True)}

    def numbers(self) -> list[float]:
        """Return the numbers of all optimizers, then of their scalers, as they are now."""
        optimizers = [one.numbers() for one in self.optimizers.values()]
        return list(chain.from_iterable([*optimizers, *map(numbers_of, self._scalers)]))

    @contextmanager
    def replaced(self, fakes: list[torch.Tensor], numbers: torch.Tensor) -> Iterator[None]:
        """Put a fake tensor in the place of each tensor, and replace what optimizers do."""
        by_id = self.by_id(fakes)
        self.taken = {}
        with ExitStack() as stack:
            for module in self._recurrent:
                # Its forward replaces the list of its weights where it finds other parameters.
                stack.callback(vars(module).update, dict(vars(module)))
            for table, name, tensor in self._slots:
                stack.callback(table.__setitem__, name, tensor)
                table[name] = by_id[id(tensor)]
            index = len(self.numbers())
            self._scalers_in_trace = {}
            for scaler in reversed(self._scalers):
                index -= len(numbers_of(scaler))
                inside = [by_id[id(one)] for one in tensors_of(scaler)]
                self._scalers_in_trace[id(scaler)] = ScalerInTrace(inside, (numbers, index))
            for optimizer in self._all:
                self._replace_optimizer(stack, optimizer, by_id, numbers)
            for optimizer in self._others:
                self._replace_groups(stack, optimizer, optimizer.param_groups)
            yield

    def check_scalers(self) -> None:
        """Refuse scaled gradients that the next step would update with."""
        for scaler in self._scalers_in_trace.values():
            scaler.check_updated()

    def first_replaced(self, fakes: list[torch.Tensor]) -> str | None:
        """Return the name of a parameter or buffer that the ops have replaced in the trace."""
        by_id = self.by_id(fakes)
        for table, name, tensor in self._slots:
            if table.get(name) is not by_id[id(tensor)]:
                return name
        return None

    def _replace_groups(
        self, stack: ExitStack, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
    ) -> None:
        own = vars(optimizer)
        for name in ("param_groups", "state"):
            stack.callback(own.__setitem__, name, own[name])
        own["param_groups"] = [RecordingDict(group, _refuse_settings) for group in groups]
        own["state"] = RecordingDict({}, _refuse_settings)

    def _replace_optimizer(
        self,
        stack: ExitStack,
        optimizer: torch.optim.Optimizer,
        by_id: dict[int, torch.Tensor],
        numbers: torch.Tensor,
    ) -> None:
        state = self.optimizers.get(id(optimizer))
        tensors: dict[int, dict[str, torch.Tensor]] = {}
        if state is not None:
            for parameter, name in state.entries():
                real = optimizer.state[parameter][name]
                tensors.setdefault(id(by_id[id(parameter)]), {})[name] = by_id[id(real)]
        groups = [
            {**group, "params": [by_id[id(one)] for one in group["params"]]}
            for group in optimizer.param_groups
        ]
        own = vars(optimizer)
        self._replace_groups(stack, optimizer, groups)
        if "step" in own:
            stack.callback(own.__setitem__, "step", own["step"])
        else:
            stack.callback(own.pop, "step")

        def step(overflown: torch.Tensor | None = None) -> None:
            if state is None:
                raise Uncapturable(self.refused[id(optimizer)])
            self.taken[id(optimizer)] = self.taken.get(id(optimizer), 0) + 1
            _update(state, groups, tensors, numbers, overflown)

        own["step"] = step
        scaler = own.get("scaler")
        if scaler is None:
            return
        stack.callback(own.__setitem__, "scaler", scaler)
        if state is None:
            own["scaler"] = RefusedScaler(self.refused[id(optimizer)])
            return
        own["scaler"] = self._scalers_in_trace[id(scaler)]
        own["scaler"].scales_for(optimizer, step)


def _refuse_settings(key: Any) -> None:
    if not isinstance(key, str) or key != "params":
        raise Uncapturable("an op reads, or sets, the settings of an optimizer")


def _update(
    state: OptimizerState,
    groups: Sequence[dict[str, Any]],
    tensors: dict[int, dict[str, torch.Tensor]],
    numbers: torch.Tensor,
    overflown: torch.Tensor | None,
) -> None:
    rule, index = state.rule, state.first
    # counts on the CPU go by it there: it is brought to them once
    passed_over: dict[torch.device, torch.Tensor] = {}
    with torch.no_grad():
        for group in groups:
            named = {name: numbers[index + at] for at, name in enumerate(rule.numbers)}
            index += len(rule.numbers)
            trained = [one for one in group["params"] if one.grad is not None]
            for parameter in trained:
                if parameter.grad.layout is not torch.strided:
                    raise Uncapturable(f"a gradient is of {parameter.grad.layout}")
                own = tensors.get(id(parameter), {})
                missing = sorted(set(rule.state_names(group, parameter)) - own.keys())
                if missing:
                    raise Uncapturable(f"{rule.kind.__name__} has no state {missing} yet")
                group_settings = Group(named, rule.settings_of(group), trained[0].dtype)
                if overflown is None:
                    rule.update(parameter, parameter.grad, own, group_settings)
                    continue
                updated = parameter.detach().clone()
                after = {name: one.clone() for name, one in own.items()}
                rule.update(updated, parameter.grad, after, group_settings)
                changes = [(parameter, updated)]
                changes += [(one, after[name]) for name, one in own.items()]
                for one, changed in changes:
                    if one.device not in passed_over:
                        passed_over[one.device] = overflown.to(one.device)
                    one.copy_(torch.where(passed_over[one.device], one, changed))
