"""How values get into graphs and out again, and how a traced function is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fastnet._trace import TensorKind
from fastnet.errors import add_note

__all__ = ["KIND", "as_graph_code", "caller"]


@dataclasses.dataclass(frozen=True)
class Composite:
    """What a value is that is made of several tensors.

    Attributes:
        key: What two values have in common that one graph can serve.
        spec: How to make such a value of its tensors.
    """

    key: tuple[Any, ...]
    spec: Any = dataclasses.field(compare=False)


def _convert(value: Any) -> Any:
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, tf.Variable):
        return value.read_value()
    module = type(value).__module__
    # arrays and scalars of numpy, and Keras 3's variables, say by themselves that they are tensors
    if hasattr(value, "__array__") and (module == "numpy" or hasattr(value, "__tf_tensor__")):
        if getattr(getattr(value, "dtype", None), "kind", "") == "O":
            return None
        return tf.convert_to_tensor(value)
    return None


def _split(value: Any) -> tuple[Composite, list[tf.Tensor]] | None:
    if not isinstance(value, tf.__internal__.CompositeTensor) or isinstance(value, tf.Variable):
        return None
    spec = tf.type_spec_from_value(value)
    tensors = tf.nest.flatten(value, expand_composites=True)
    return Composite(_key_of(spec, len(tensors)), _any_batch(spec)), tensors


def _key_of(spec: Any, count: int) -> tuple[Any, ...]:
    shape = getattr(spec, "shape", None)
    if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)) and shape.rank:
        return (type(spec), spec.dtype, *shape[1:], getattr(spec, "ragged_rank", None), count)
    if type(spec).__name__ == "PerReplicaSpec":
        return (type(spec), count)
    return (type(spec), spec)


def _any_batch(spec: Any) -> Any:
    shape = getattr(spec, "shape", None)
    if isinstance(spec, tf.RaggedTensorSpec) and shape.rank:
        return tf.RaggedTensorSpec(
            [None, *shape[1:]], spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.SparseTensorSpec) and shape.rank:
        return tf.SparseTensorSpec([None, *shape[1:]], spec.dtype)
    return spec


def _join(kind: Composite, tensors: list[tf.Tensor]) -> Any:
    return tf.nest.pack_sequence_as(kind.spec, tensors, expand_composites=True)


def _type_of(tensor: tf.Tensor) -> int:
    number: int = tensor.dtype.as_datatype_enum
    return number


def _shape_of(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape)


def _readers(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Give the fastest ways to read an eager tensor's type and shape."""
    type_of = getattr(cls, "_datatype_enum", None)
    shape_of = getattr(cls, "_shape_tuple", None)
    if type_of is None or shape_of is None:
        return _type_of, _shape_of

    # a tensor of an outer graph is of another class, and may not have C's methods
    def any_type_of(tensor: Any) -> Any:
        return type_of(tensor) if type(tensor) is cls else _type_of(tensor)

    def any_shape_of(tensor: Any) -> Any:
        return shape_of(tensor) if type(tensor) is cls else _shape_of(tensor)

    return any_type_of, any_shape_of


_EAGER = type(tf.constant(0))

KIND = TensorKind(_EAGER, *_readers(_EAGER), _convert, _split, _join)
"""TensorFlow's tensors, for the kernel."""


def as_graph_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph turn a function's conditions and loops over tensors into those of a graph.

    Args:
        function: The function. One that AutoGraph cannot read runs as it is.

    Returns:
        A function for use while a graph is traced. It raises what `function` raises, and not what
        AutoGraph makes of that.
    """
    autograph = tf.__internal__.autograph
    converted = autograph.tf_convert(function, autograph.control_status_ctx())

    def run(*args: Any) -> Any:
        try:
            return converted(*args)
        except Exception as error:
            source = error.__context__
            origin = getattr(source, "ag_error_metadata", None)
            if source is None or origin is None or not isinstance(source, Exception):
                raise
            for frame in origin.translated_stack[:1]:
                add_note(
                    source,
                    f'In the source: File "{frame.filename}", line {frame.lineno}, in '
                    f"{frame.function_name}: {frame.code}",
                )
            raise source from source.__cause__

    return run


def caller(concrete: Any) -> Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]:
    """Give the shortest way to call a traced function.

    Args:
        concrete: A concrete function of flat tensors, which returns a list of tensors.

    Returns:
        A function that takes the tensors as a list and returns a sequence of tensors. It keeps
        `concrete`, and what that captured, alive.
    """

    def call_publicly(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        outputs: Sequence[tf.Tensor] = concrete(*tensors)
        return outputs

    try:
        # What the public call comes to, after binding arguments to names and packing results.
        from tensorflow.python.eager import context, record

        eager = context.context()
        call_function = eager.call_function
        executing_eagerly = eager.executing_eagerly
        could_record = record.could_possibly_record
        name = concrete.name
        captured = list(concrete.captured_inputs)
        outputs = concrete.outputs
    except (ImportError, AttributeError):
        return call_publicly
    count = len(outputs)
    handles = any(output.dtype in (tf.resource, tf.variant) for output in outputs)
    if handles or not isinstance(name, bytes) or not all(map(_is_eager, captured)):
        return call_publicly

    def call(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        if could_record() or not executing_eagerly():
            # a tape or a graph of the program's own is to know of this step
            return call_publicly(tensors)
        return call_function(name, tensors + captured, count) or ()

    call.concrete = concrete  # type: ignore[attr-defined]
    return call


def _is_eager(value: Any) -> bool:
    return type(value) is _EAGER
