"""The tensors, numbers and optimizers of a step, and fake ones in their places during a trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import torch

from fastnet.backend.model_metadata import every_optimizer_of, holder_of
from fastnet.backend.torch._internals import tables_of
from fastnet.backend.torch.optimizer_step import STEP_IF
from fastnet.guards import Snapshot
from fastnet.network.torch.compiled.buffer_broadcasts import BufferBroadcasts
from fastnet.network.torch.compiled.number_inputs import OpNumber
from fastnet.network.torch.compiled.optimizers import (
    OptimizerSpec,
    is_number_tensor,
    require_dense,
    spec_of,
)
from fastnet.network.torch.compiled.rules import Group
from fastnet.network.torch.compiled.trace_watch import WatchedDict
from fastnet.network.torch.compiled.uncapturable import Uncapturable


class OptimizerState:
    """The state and the settings of an optimizer that a compiled step uses.

    Args:
        optimizer: The optimizer.
        first_number: The index of its first number among those of the step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, first_number: int) -> None:
        self.optimizer = optimizer
        self.spec: OptimizerSpec = spec_of(optimizer)
        self.first_number = first_number
        self.settings = self.settings_now()
        self.keys = [(id(parameter), name) for parameter, name in self.entries()]
        # If the step does not use it, its tensors and numbers when the program was made; else None.
        self._unused: tuple[list[torch.Tensor], list[float]] | None = None

    @property
    def is_used(self) -> bool:
        """Whether the step uses the optimizer."""
        return self._unused is None

    def set_unused(self) -> None:
        """Let the optimizer change: for the step, its tensors and numbers remain those of now."""
        self._unused = self.tensors(), self.numbers()

    def settings_now(self) -> list[Any]:
        """Return the settings that are constants, with the parameters of each group.

        Which numbers are tensors is constant, too, because `snapshot_and_readers` reads these by
        `item`.
        """
        return [
            (
                self.spec.constants_of(group),
                self._number_tensors(group),
                list(map(id, group["params"])),
            )
            for group in self.optimizer.param_groups
        ]

    def _number_tensors(self, group: Mapping[str, Any]) -> list[str]:
        """Return the names of the numbers of a group that are tensors."""
        return [name for name in self.spec.entry_inputs if is_number_tensor(group[name])]

    def snapshot_and_readers(self) -> tuple[Snapshot, list[tuple[dict[str, Any], Any]]]:
        """Return a snapshot of the optimizer without the numbers of its groups.

        Returns:
            The snapshot, and each group with a function that reads its numbers.
        """
        names = self.spec.entry_inputs
        groups = self.optimizer.param_groups
        skip: list[tuple[Any, str]] = [(self.optimizer, "_opt_called")]
        skip += [(group, name) for group in groups for name in names]
        snapshot = Snapshot([("the optimizer", self.optimizer)], skip)
        readers: list[Callable[[dict[str, Any]], Any]] = [
            self.spec.numbers_of if self._number_tensors(group) else itemgetter(*names)
            for group in groups
        ]
        return snapshot, list(zip(groups, readers, strict=True))

    def numbers(self) -> list[float]:
        """Return the numbers of its groups, as they are now if the step uses them."""
        if self._unused is not None:
            return self._unused[1]
        groups = map(self.spec.numbers_of, self.optimizer.param_groups)
        return [number for numbers in groups for number in numbers]

    def tensors(self) -> list[torch.Tensor]:
        """Return its state tensors, as they are now if the step uses them."""
        if self._unused is not None:
            return self._unused[0]
        tensors: list[torch.Tensor] = []
        for parameter, name in self.entries():
            value = self.optimizer.state[parameter][name]
            if type(value) is not torch.Tensor:
                raise Uncapturable(
                    f"`{name}` in the state of {type(self.optimizer).__name__} is of type "
                    f"{type(value).__name__}"
                )
            tensors.append(value)
        return tensors

    def entries(self) -> list[tuple[torch.Tensor, str]]:
        """List the parameters with the names of their state tensors."""
        optimizer = self.optimizer
        return [
            (parameter, name)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in optimizer.state
            for name in self.spec.state_names(group, parameter)
            if name in optimizer.state[parameter]
        ]


class StepState:
    """The tensors, numbers and optimizers that steps of some models read and write.

    The batch and the tensors that ops hold are not among them.

    Args:
        models: The models.
        takes_gradients: Whether the step may update them.
        device: The device of the ops.
        op_numbers: The Python numbers of ops that are inputs.

    Attributes:
        tensors: Parameters and buffers, and then the state of optimizers.
        parameters: The parameters among these.
        optimizers: The state of each optimizer that can be captured, by its id.
        refused: Why each other optimizer cannot be captured, by its id.
        broadcasts: Which models broadcast their buffers.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        takes_gradients: bool,
        device: torch.device,
        op_numbers: Sequence[OpNumber],
    ) -> None:
        self.device = device
        self.op_numbers = list(op_numbers)
        self.broadcasts = BufferBroadcasts(models)
        self.optimizers: dict[int, OptimizerState] = {}
        self.refused: dict[int, str] = {}
        # For each parameter and buffer: a table of its module, its name there, and the tensor.
        self._entries: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._recurrent: list[torch.nn.Module] = []
        self._add_modules(models)

        self._holders = [
            holder_of(model, "current_optimizer") for model in models if takes_gradients
        ]
        self._current = self._current_optimizers()
        by_id = {id(optimizer): optimizer for optimizer in self._current if optimizer is not None}
        # Those that the step may call are the current ones, if it takes gradients.
        self._usable_optimizers = list(by_id.values())
        self._unusable_optimizers = [
            optimizer
            for model in models
            for optimizer in every_optimizer_of(model)
            if id(optimizer) not in by_id
        ]

        tensors = {id(tensor): tensor for _, _, tensor in self._entries}
        for optimizer in self._usable_optimizers:
            for group in optimizer.param_groups:
                tensors.update((id(parameter), parameter) for parameter in group["params"])
        self.tensors = list(tensors.values())
        self.parameters = [
            tensor for tensor in self.tensors if isinstance(tensor, torch.nn.Parameter)
        ]
        self._add_optimizers()
        self.tensors += self.optimizer_tensors()
        self._check_tensors(len(tensors))

    def _add_modules(self, models: Sequence[torch.nn.Module]) -> None:
        modules = {id(module): module for model in models for module in model.modules()}
        for module in modules.values():
            if isinstance(module, torch.jit.ScriptModule):
                raise Uncapturable(f"{type(module).__name__} is a scripted module")
            if isinstance(module, torch.nn.RNNBase):
                self._recurrent.append(module)
            for table in tables_of(module):
                self._entries += [
                    (table, name, tensor) for name, tensor in table.items() if tensor is not None
                ]

    def _add_optimizers(self) -> None:
        number_count = len(self.op_numbers)
        for optimizer in self._usable_optimizers:
            if getattr(optimizer, "scaler", None) is not None:
                raise Uncapturable(
                    "the loss is scaled by a GradScaler, whose scale is read in each step; "
                    'mixed_precision="bfloat16" needs none'
                )
            try:
                state = OptimizerState(optimizer, number_count)
                state.tensors()
            except Uncapturable as error:
                self.refused[id(optimizer)] = str(error)
                continue
            number_count += len(state.numbers())
            self.optimizers[id(optimizer)] = state

    def set_used_optimizers(self, used: Collection[int]) -> None:
        """Let all optimizers change but those with the given ids, which the step uses.

        Another network may train the models of the others.
        """
        unused = self.optimizers.keys() - used
        for key in unused:
            self.optimizers[key].set_unused()
        compared = [
            (holder, optimizer)
            for holder, optimizer in zip(self._holders, self._current, strict=True)
            if id(optimizer) not in unused
        ]
        self._holders = [holder for holder, _ in compared]
        self._current = [optimizer for _, optimizer in compared]

    @property
    def used_optimizers(self) -> list[OptimizerState]:
        """The state of the optimizers that the step uses."""
        return [state for state in self.optimizers.values() if state.is_used]

    def optimizer_tensors(self) -> list[torch.Tensor]:
        """Return the state tensors of all optimizers: those of unused ones as they were noted."""
        return [tensor for state in self.optimizers.values() for tensor in state.tensors()]

    def _current_optimizers(self) -> list[Any]:
        return [getattr(holder, "current_optimizer", None) for holder in self._holders]

    def has_other_optimizers(self) -> bool:
        """Return whether a current optimizer that the step uses has been replaced."""
        return self._current_optimizers() != self._current

    def _check_tensors(self, count: int) -> None:
        """Refuse tensors that a graph cannot take; the first `count` are parameters and buffers."""
        for index, tensor in enumerate(self.tensors):
            owner = "a parameter or a buffer" if index < count else "the state of an optimizer"
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise Uncapturable(f"{owner} is, or has, a {type(tensor).__name__}")
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
                raise Uncapturable(f"{owner} is of {tensor.dtype}, {tensor.layout}")
            # Optimizers keep their step counts on the CPU, wherever parameters are.
            is_step_count = index >= count and tensor.device.type == "cpu" and not tensor.dim()
            if tensor.device != self.device and not is_step_count:
                raise Uncapturable(f"{owner} is on {tensor.device}")
            if not tensor.is_leaf:
                raise Uncapturable(f"{owner} is not a leaf tensor; detach it")
        if share_memory(self.tensors):
            raise Uncapturable(
                "two parameters, buffers or tensors of an optimizer's state share memory"
            )

    def fakes_by_id(self, fakes: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the fake tensor for each of `tensors`, by the id of the latter."""
        return {id(tensor): fake for tensor, fake in zip(self.tensors, fakes, strict=True)}

    def numbers(self) -> list[float]:
        """Return the numbers of ops, then of all optimizers; those of unused ones as noted."""
        numbers = [float(number.read()) for number in self.op_numbers]
        for state in self.optimizers.values():
            numbers += state.numbers()
        return numbers

    def new_numbers(self) -> torch.Tensor:
        """Create the tensor that a program reads the numbers from."""
        # On the device: Inductor reads elements of a CPU tensor as if they were on the GPU.
        return torch.zeros(max(len(self.numbers()), 1), dtype=torch.float64, device=self.device)

    @contextmanager
    def replaced(
        self, fakes: list[torch.Tensor], numbers: torch.Tensor, symbols: Sequence[Any]
    ) -> Iterator[dict[int, int]]:
        """Put fake tensors and symbols in the places of tensors and numbers; replace optimizers.

        Args:
            fakes: A fake tensor for each of `tensors`.
            numbers: A fake tensor of the numbers.
            symbols: A symbol for each of `op_numbers`.

        Yields:
            The number of steps of each optimizer, by its id.
        """
        fakes_by_id = self.fakes_by_id(fakes)
        step_counts: dict[int, int] = {}
        with ExitStack() as stack:
            for module in self._recurrent:
                # Its forward replaces the list of its weights where it finds other parameters.
                stack.callback(vars(module).update, dict(vars(module)))
            for table, name, tensor in self._entries:
                stack.callback(table.__setitem__, name, tensor)
                table[name] = fakes_by_id[id(tensor)]
            for number, symbol in zip(self.op_numbers, symbols, strict=True):
                table, name = number.require_table(), number.name
                stack.callback(table.__setitem__, name, number.read())
                table[name] = symbol
            for optimizer in self._usable_optimizers:
                self._replace_optimizer(stack, optimizer, fakes_by_id, numbers, step_counts)
            for optimizer in self._unusable_optimizers:
                self._replace_groups(stack, optimizer, optimizer.param_groups)
            yield step_counts

    def replaced_number(self, symbols: Sequence[Any]) -> OpNumber | None:
        """Return a number that the ops have replaced in the trace."""
        for number, symbol in zip(self.op_numbers, symbols, strict=True):
            if number.require_table().get(number.name) is not symbol:
                return number
        return None

    def replaced_tensor(self, fakes: list[torch.Tensor]) -> str | None:
        """Return the name of a parameter or buffer that the ops have replaced in the trace."""
        fakes_by_id = self.fakes_by_id(fakes)
        for table, name, tensor in self._entries:
            if table.get(name) is not fakes_by_id[id(tensor)]:
                return name
        return None

    def _replace_groups(
        self, stack: ExitStack, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]
    ) -> None:
        attributes = vars(optimizer)
        for name in ("param_groups", "state"):
            stack.callback(attributes.__setitem__, name, attributes[name])
        attributes["param_groups"] = [WatchedDict(group, _refuse_settings) for group in groups]
        attributes["state"] = WatchedDict({}, _refuse_settings)

    def _replace_optimizer(
        self,
        stack: ExitStack,
        optimizer: torch.optim.Optimizer,
        fakes_by_id: dict[int, torch.Tensor],
        numbers: torch.Tensor,
        step_counts: dict[int, int],
    ) -> None:
        state = self.optimizers.get(id(optimizer))
        tensors: dict[int, dict[str, torch.Tensor]] = {}
        if state is not None:
            for parameter, name in state.entries():
                fake_parameter = fakes_by_id[id(parameter)]
                fake_tensor = fakes_by_id[id(optimizer.state[parameter][name])]
                tensors.setdefault(id(fake_parameter), {})[name] = fake_tensor
        groups = [
            {
                # A tensor has no value in the trace.
                **{
                    name: value.item() if is_number_tensor(value) else value
                    for name, value in group.items()
                },
                "params": [fakes_by_id[id(parameter)] for parameter in group["params"]],
            }
            for group in optimizer.param_groups
        ]
        self._replace_groups(stack, optimizer, groups)
        attributes = vars(optimizer)
        if "step" in attributes:
            stack.callback(attributes.__setitem__, "step", attributes["step"])
        else:
            stack.callback(attributes.pop, "step")
        stack.callback(attributes.pop, STEP_IF)

        def step() -> None:
            if state is None:
                raise Uncapturable(self.refused[id(optimizer)])
            step_counts[id(optimizer)] = step_counts.get(id(optimizer), 0) + 1
            _update(state, groups, tensors, numbers)

        attributes["step"] = step
        attributes[STEP_IF] = partial(_step_if, step, groups, tensors)


def memory_ranges(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the begin and end addresses of the storage of each tensor, in ascending order."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sorted(
        (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        for storage in storages
        if storage.nbytes()
    )


def share_memory(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether the storages of two tensors overlap, as those of numpy's views do."""
    return any(begin < end for (_, end), (begin, _) in pairwise(memory_ranges(tensors)))


def _refuse_settings(key: Any) -> None:
    if not isinstance(key, str) or key != "params":
        raise Uncapturable(
            "an op reads, or sets, the settings of an optimizer; do so in the loop, or by "
            "LRSchedule"
        )


def _step_if(
    step: Callable[[], None],
    groups: Sequence[dict[str, Any]],
    tensors: dict[int, dict[str, torch.Tensor]],
    condition: torch.Tensor,
) -> None:
    """Let an optimizer step, and undo the step unless a scalar tensor is true."""
    trained = [
        parameter for group in groups for parameter in group["params"] if parameter.grad is not None
    ]
    state_tensors = [tensors.get(id(parameter), {}).values() for parameter in trained]
    updated = [*trained, *chain.from_iterable(state_tensors)]
    with torch.no_grad():
        values_before = [tensor.clone() for tensor in updated]
        step()
        for tensor, before in zip(updated, values_before, strict=True):
            tensor.copy_(torch.where(condition.to(tensor.device), tensor, before))


def _update(
    state: OptimizerState,
    groups: Sequence[dict[str, Any]],
    tensors: dict[int, dict[str, torch.Tensor]],
    numbers: torch.Tensor,
) -> None:
    """Update the parameters that have gradients, by the rule of their optimizer."""
    spec, index = state.spec, state.first_number
    with torch.no_grad():
        for group in groups:
            group_numbers = {
                name: numbers[index + offset] for offset, name in enumerate(spec.inputs)
            }
            index += len(spec.inputs)
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:
                continue
            group_settings = Group(group_numbers, spec.constants_of(group), trained[0].dtype)
            for parameter in trained:
                require_dense("a gradient", parameter.grad)
                parameter_state = tensors.get(id(parameter), {})
                names = set(spec.state_names(group, parameter))
                missing = sorted(names - parameter_state.keys())
                if missing:
                    raise Uncapturable(f"{spec.kind.__name__} has no state {missing} yet")
                spec.update(parameter, parameter.grad, parameter_state, group_settings)
