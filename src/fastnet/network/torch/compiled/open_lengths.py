"""The lengths of a batch that a program leaves open: which axes have them, and which share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fastnet._trace import FORMS, Signature, TensorSpec, map_form
from fastnet.network.dynamic_axes import AxesOf
from fastnet.network.torch.compiled.input_signature import (
    TENSOR_ADAPTER,
    contiguous_strides,
    is_contiguous,
    without_strides,
)
from fastnet.network.torch.compiled.uncapturable import Uncapturable

LengthValues = tuple[int, ...]


class Axis(NamedTuple):
    """An axis of a tensor of a batch; `tensor` is the index of the tensor."""

    tensor: int
    number: int


class OpenLength(NamedTuple):
    """A length that is open.

    Attributes:
        axes: The axes that have it.
        example: The length in the batch that the program is made for.
        usual: The most likely length, as far as is known.
    """

    axes: tuple[Axis, ...]
    example: int
    usual: int


# The first batch says little of the lengths of others, and a program for short ones is slow for
# long ones.
_UNKNOWN_LENGTH = 64


class OpenLengths(NamedTuple):
    """The lengths that a program leaves open.

    Attributes:
        groups: The lengths, with the axes that have each.
        contiguous: The indices of tensors that must be contiguous, because their strides depend on
            these lengths.
        left_to_other_programs: Combinations of lengths that other programs were compiled for, and
            that these run.
    """

    groups: tuple[OpenLength, ...]
    contiguous: tuple[int, ...]
    left_to_other_programs: frozenset[LengthValues]

    @property
    def axes(self) -> list[Axis]:
        """All axes whose lengths are open."""
        return [axis for length in self.groups for axis in length.axes]


# --- batches --------------------------------------------------------------------------------------


class BatchLengths:
    """The lengths of a batch, to compare with those of programs that differ in lengths alone.

    Args:
        batch: The batch.
        keys: The keys that programs read from it.
        allowed: Given the key and the rank of a tensor, returns the axes that may be dynamic.
        signatures: The signatures of programs.

    Attributes:
        changed: The axes that may be dynamic, and have another length in a program.
    """

    def __init__(
        self,
        batch: Mapping[str, Any],
        keys: Sequence[str],
        allowed: AxesOf,
        signatures: Iterable[Signature],
    ) -> None:
        forms = {key: TENSOR_ADAPTER.form_of(batch[key]) for key in keys}
        self._keys = [key for key, form in forms.items() for _ in _slots([form])]
        self._slots = _slots(list(forms.values()))
        self._may_vary = self.axes(allowed)
        # The slots of similar programs.
        self._program_slots: list[list[TensorSpec]] = []
        for signature in signatures:
            # Numbers that are inputs of a program are not in its keys.
            program_forms = [forms[key] for key in signature.keys]
            if self._differs_in_lengths_alone(signature, program_forms):
                self._program_slots.append(_slots(signature.inputs))
        self.changed = {
            axis
            for axis in self._may_vary
            if any(
                _length_in(slots, axis) != _length_in(self._slots, axis)
                for slots in self._program_slots
            )
        }

    def _differs_in_lengths_alone(self, signature: Signature, forms: Sequence[Any]) -> bool:
        """Return whether a program would match forms of the batch if all allowed axes were open."""
        if not FORMS.matches(with_open_axes(forms, self._may_vary), signature.inputs):
            return False
        program_slots = _slots(signature.inputs)
        return all(
            is_contiguous(slot) == is_contiguous(program_slot)
            for slot, program_slot in zip(self._slots, program_slots, strict=True)
        )

    @property
    def has_similar_program(self) -> bool:
        """Whether there is a program that differs from the batch in lengths alone."""
        return bool(self._program_slots)

    def axes(self, axes_of: AxesOf) -> set[Axis]:
        """Return the axes that a function selects, without those of length 1, which broadcast."""
        return {
            Axis(index, number)
            for index, (key, slot) in enumerate(zip(self._keys, self._slots, strict=True))
            if slot.shape is not None
            for number in axes_of(key, len(slot.shape))
            if (slot.shape[number] or 0) > 1
        }

    def with_batch_sizes(self, axes: set[Axis]) -> set[Axis]:
        """Add axis 0 of the tensors whose batch size may vary and equals one among the axes.

        Otherwise a program whose ops need equal batch sizes would be valid for one size only.
        """
        sizes = {_length_in(self._slots, axis) for axis in axes if axis.number == 0}
        equal = (
            axis
            for axis in self._may_vary
            if axis.number == 0 and _length_in(self._slots, axis) in sizes
        )
        return axes.union(equal)

    def key_of(self, axis: Axis) -> str:
        """Return the key of the tensor of an axis."""
        return self._keys[axis.tensor]

    def open_lengths(self, axes: set[Axis]) -> OpenLengths | None:
        """Return the lengths of some axes as open ones; None if there are no axes.

        Axes share a length if they are equal now, and in each program. Two axes of one tensor never
        do.
        """
        groups = self._group(axes)
        if not groups:
            return None
        lengths = []
        for group in groups:
            example, *program_lengths = self._history(group[0])
            assert example is not None
            known_lengths = [length for length in program_lengths if length is not None]
            usual = max([example, *(known_lengths or [_UNKNOWN_LENGTH])])
            lengths.append(OpenLength(tuple(group), example, usual))
        contiguous = {
            axis.tensor
            for axis in axes
            if axis.number > 0 and is_contiguous(self._slots[axis.tensor])
        }
        return OpenLengths(
            groups=tuple(lengths),
            contiguous=tuple(sorted(contiguous)),
            left_to_other_programs=self._fixed_by_programs(lengths, axes),
        )

    def _group(self, axes: set[Axis]) -> list[list[Axis]]:
        """Group the axes that share a length."""
        groups: list[list[Axis]] = []
        for axis in sorted(axes, key=lambda axis: (axis.number, axis.tensor)):
            fitting = [group for group in groups if self._is_shared(axis, group)]
            # Axes with the same number most likely have the same meaning.
            preferred = [group for group in fitting if group[0].number == axis.number] or fitting
            if preferred:
                preferred[0].append(axis)
            else:
                groups.append([axis])
        return groups

    def _is_shared(self, axis: Axis, group: Sequence[Axis]) -> bool:
        is_in_other_tensors = all(axis.tensor != member.tensor for member in group)
        return is_in_other_tensors and self._history(axis) == self._history(group[0])

    def _fixed_by_programs(
        self, lengths: Sequence[OpenLength], axes: set[Axis]
    ) -> frozenset[LengthValues]:
        """Return the values of some lengths that programs have as constants, except the batch's."""
        fixed_values: set[LengthValues] = set()
        for program_slots in self._program_slots:
            lengths_in_program = [_length_in(program_slots, length.axes[0]) for length in lengths]
            values = tuple(value for value in lengths_in_program if value is not None)
            is_fixed = len(values) == len(lengths)
            if is_fixed and self._differs_only_in(program_slots, axes):
                fixed_values.add(values)
        fixed_values.discard(tuple(length.example for length in lengths))
        return frozenset(fixed_values)

    def _history(self, axis: Axis) -> list[int | None]:
        """Return the length of an axis now, and in each program; None where it is open."""
        return [_length_in(slots, axis) for slots in (self._slots, *self._program_slots)]

    def _differs_only_in(self, program_slots: Sequence[TensorSpec], axes: set[Axis]) -> bool:
        return all(
            axis in axes or _length_in(program_slots, axis) == _length_in(self._slots, axis)
            for axis in self.changed
        )


def with_open_axes(forms: Sequence[Any], axes: set[Axis]) -> list[Any]:
    """Return forms that match any length of some axes."""
    remaining = iter(range(len(_slots(forms))))

    def open_some(slot: TensorSpec) -> TensorSpec:
        index = next(remaining)
        if slot.shape is None:
            return slot
        shape = tuple(
            None if Axis(index, number) in axes else length
            for number, length in enumerate(slot.shape)
        )
        # The strides of a contiguous tensor depend on all lengths but that of axis 0.
        if None in shape[1:] and is_contiguous(slot):
            return without_strides(slot, shape)
        return TensorSpec(slot.type, shape)

    return [map_form(form, open_some, as_form=True) for form in forms]


def read_lengths(lengths: OpenLengths, tensors: Sequence[torch.Tensor]) -> LengthValues | None:
    """Return the open lengths of a batch; None if axes that are to share one have several."""
    values = []
    for length in lengths.groups:
        first, *other_axes = length.axes
        value = tensors[first.tensor].shape[first.number]
        for axis in other_axes:
            if tensors[axis.tensor].shape[axis.number] != value:
                return None
        values.append(value)
    return tuple(values)


def unequal_axes(lengths: OpenLengths, tensors: Sequence[torch.Tensor]) -> tuple[Axis, ...]:
    """Return the first two axes of a batch that are to share a length and differ; empty if none."""
    for length in lengths.groups:
        first, *other_axes = length.axes
        value = tensors[first.tensor].shape[first.number]
        for axis in other_axes:
            if tensors[axis.tensor].shape[axis.number] != value:
                return first, axis
    return ()


def has_other_strides(lengths: OpenLengths, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a tensor of a batch that must be contiguous is not."""
    return any(
        tensors[index].stride() != contiguous_strides(tensors[index].shape)
        for index in lengths.contiguous
    )


def _slots(forms: Sequence[Any]) -> list[TensorSpec]:
    slots: list[TensorSpec] = []
    for form in forms:
        map_form(form, slots.append)
    return slots


def _length_in(slots: Sequence[TensorSpec], axis: Axis) -> int | None:
    shape = slots[axis.tensor].shape
    assert shape is not None
    return shape[axis.number]


# --- traces ---------------------------------------------------------------------------------------

_DEPENDS_ON_LENGTH = "the graph depends on this length"


class TracedLength(NamedTuple):
    """An open length in a trace.

    Attributes:
        size: The length as a symbolic integer, which the trace may have replaced by another symbol
            or by a number.
        symbol: Its symbol in the conditions of the trace.
    """

    size: Any
    symbol: Any

    @classmethod
    def of(cls, size: Any) -> TracedLength:
        """Return a length from its symbol, before the trace."""
        return cls(size, size.node.expr)


def require_open(lengths: Sequence[TracedLength], reason: str = _DEPENDS_ON_LENGTH) -> None:
    """Refuse a graph that is valid for one value of an open length only, for a reason."""
    # An expression without symbols is a constant: the trace is specialized to it.
    specialized = [
        index for index, length in enumerate(lengths) if not length.size.node.expr.free_symbols
    ]
    if specialized:
        raise Uncapturable(reason, specialized=specialized)


def independent_lengths(lengths: Sequence[TracedLength]) -> list[int]:
    """Return the indices of the lengths that do not follow from others."""
    symbols = [length.size.node.expr for length in lengths]
    return [
        index
        for index, symbol in enumerate(symbols)
        if symbol.is_Symbol and symbol not in symbols[:index]
    ]


def admitted_lengths(mode: Any, lengths: Sequence[TracedLength]) -> Callable[[LengthValues], bool]:
    """Return a test for the lengths that a graph is valid for."""
    # The trace has left them open, so it is the compiler that has replaced a symbol by a number.
    require_open(lengths, "the compiler needs this length as a number")
    env, symbols = mode.shape_env, [length.symbol for length in lengths]
    conditions = [guard.expr for guard in env.guards]
    if lengths and (
        any(env.deferred_runtime_asserts.values())
        or not all(condition.free_symbols <= set(symbols) for condition in conditions)
    ):
        raise Uncapturable(_DEPENDS_ON_LENGTH, specialized=range(len(lengths)))

    def admits(values: LengthValues) -> bool:
        # A length of 1 is not covered by a symbol: it broadcasts, and has no variance.
        values_by_symbol = dict(zip(symbols, values, strict=True))
        return all(value > 1 for value in values) and all(
            condition.subs(values_by_symbol) == True  # noqa: E712
            for condition in conditions
        )

    return admits
