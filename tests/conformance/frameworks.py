"""One face for both frameworks, so that a program is written once and runs in each of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import fastnet
from fastnet.network import BaseNetwork, TorchNetwork
from fastnet.op.tensorop import TensorOp

try:
    import tensorflow as tf

    from fastnet.network import TFNetwork
except ModuleNotFoundError:  # only the tests of PyTorch run
    tf = TFNetwork = None

Array = np.ndarray[Any, Any]
Batch = Mapping[str, Any]
Layers = Sequence[tuple[Array, Array]]


class Framework:
    """What a program needs that fastnet itself does not offer for both frameworks.

    Arrays stand for tensors: what goes into a step is made of them, and results come back as them.
    A kernel has shape (inputs, outputs), whatever the framework makes of it.

    Attributes:
        name: What tests are called by.
        target: fastnet's name of the framework.
        network_class: The class of its networks.
        copies_optimizers: Whether models that have optimizers can be copied and pickled.
    """

    target: str
    network_class: type[BaseNetwork]
    copies_optimizers = True

    def __init__(self, name: str, eager: bool = False) -> None:
        self.name = name
        self.eager = eager

    def __repr__(self) -> str:
        return self.name

    # ------------------------------------------------------------------ each framework's own

    tensor: Callable[[Array], Any]
    is_tensor: Callable[[Any], bool]  # and whether it can be read now
    array: Callable[[Any], Array]
    mean: Callable[..., Any]  # over an axis, or over all of them
    tanh: Callable[[Any], Any]
    cast: Callable[[Any, str], Any]
    gradients: Callable[[Any, Any, Any], list[Any]]  # of a loss by what a model trains
    make_model: Callable[[Layers], Any]  # dense layers with tanh between them
    dense_layers: Callable[[Any], list[Any]]
    layer_name: Callable[[Any, int], str]  # as ModelOp knows a dense layer
    weights: Callable[[Any], list[Array]]  # copies of kernels and biases, in the layers' order
    freeze: Callable[..., None]  # a dense layer; frozen=False thaws it
    sgd: Callable[..., Callable[..., Any]]
    adam: Callable[..., Callable[..., Any]]
    rate: Callable[[Any], float]
    set_rate: Callable[[Any, float], None]

    # ------------------------------------------------------------------ what they share

    def tensors(self, nest: Any) -> Any:
        """Make tensors of the arrays in a nest."""
        return map_nest(nest, lambda one: self.tensor(one) if isinstance(one, np.ndarray) else one)

    def arrays(self, nest: Any) -> Any:
        """Make arrays of the tensors in a nest, which must hold no array yet."""

        def read(value: Any) -> Any:
            if self.is_tensor(value):
                return self.array(value)
            module = type(value).__module__.partition(".")[0]
            assert module not in ("numpy", "torch", "tensorflow"), f"{value!r} in {self.name}"
            return value

        return map_nest(nest, read)

    def build(self, layers: Layers, optimizer: Any = None, name: str = "model", **rest: Any) -> Any:
        """Make a model of given weights ready for a network."""
        return fastnet.build(lambda: self.make_model(layers), optimizer, model_name=name, **rest)

    def network(self, ops: Any, pops: Any = None, slicers: Any = None) -> BaseNetwork:
        """Make a network."""
        return self.network_class(ops, pops, slicers)

    def opened(
        self, network: BaseNetwork, mode: str = "infer", epoch: int = 1, **context: Any
    ) -> BaseNetwork:
        """Configure a network."""
        return network(mode=mode, epoch=epoch, eager=self.eager, **context)

    def step(
        self, network: BaseNetwork, batch: Mapping[str, Any], *mode: Any, **context: Any
    ) -> Any:
        """Enter a network for a single step."""
        (result,) = self.steps(network, [batch], *mode, **context)
        return result

    def steps(
        self, network: BaseNetwork, batches: Iterable[Batch], *mode: Any, **context: Any
    ) -> list[dict[str, Any]]:
        """Enter a network, and run a step for each batch."""
        with self.opened(network, *mode, **context):
            return [self.arrays(network.run_step(self.tensors(batch))) for batch in batches]


class Torch(Framework):
    target = "torch"
    network_class = TorchNetwork

    def tensor(self, array: Array) -> Any:
        return torch.tensor(array)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def array(self, tensor: Any) -> Array:
        assert not tensor.requires_grad
        copied: Array = tensor.cpu().numpy().copy()
        return copied

    def mean(self, x: Any, axis: int | None = None) -> Any:
        return x.mean() if axis is None else x.mean(axis)

    def tanh(self, x: Any) -> Any:
        return torch.tanh(x)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    def gradients(self, loss: Any, model: Any, state: Any) -> list[Any]:
        trained = [one for one in model.parameters() if one.requires_grad]
        return list(torch.autograd.grad(loss, trained, retain_graph=True))

    def make_model(self, layers: Layers) -> Any:
        made: list[torch.nn.Module] = []
        for kernel, bias in layers:
            layer = torch.nn.Linear(*kernel.shape)
            with torch.no_grad():
                layer.weight.copy_(torch.tensor(kernel.T))
                layer.bias.copy_(torch.tensor(bias))
            made += [layer, torch.nn.Tanh()]
        return torch.nn.Sequential(*made[:-1])

    def dense_layers(self, model: Any) -> list[Any]:
        return [layer for layer in model if isinstance(layer, torch.nn.Linear)]

    def layer_name(self, model: Any, place: int) -> str:
        return str(2 * place)

    def weights(self, model: Any) -> list[Array]:
        return [
            one.detach().cpu().numpy().copy()
            for layer in self.dense_layers(model)
            for one in (layer.weight.T, layer.bias)
        ]

    def freeze(self, model: Any, place: int, frozen: bool = True) -> None:
        self.dense_layers(model)[place].requires_grad_(not frozen)

    def sgd(self, rate: float = 0.1, momentum: float = 0.0) -> Callable[..., Any]:
        return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def adam(self, rate: float = 0.01) -> Callable[..., Any]:
        return lambda parameters: torch.optim.Adam(parameters, lr=rate, eps=1e-10)

    def rate(self, model: Any) -> float:
        return float(model.current_optimizer.param_groups[0]["lr"])

    def set_rate(self, model: Any, rate: float) -> None:
        for group in model.current_optimizer.param_groups:
            group["lr"] = rate


class CompiledTorch(Torch):
    """PyTorch steps that are captured, and run by programs from the second one on."""

    def network(self, ops: Any, pops: Any = None, slicers: Any = None) -> BaseNetwork:
        options = fastnet.CompileOptions(backend="eager", verify=None)
        return self.network_class(ops, pops, slicers, compile=options)


class TF(Framework):
    target = "tf"
    network_class = TFNetwork
    copies_optimizers = tf is not None and hasattr(tf.keras, "ops")

    def tensor(self, array: Array) -> Any:
        return tf.constant(array)

    def is_tensor(self, value: Any) -> bool:
        return bool(tf.is_tensor(value)) and hasattr(value, "numpy")

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor.numpy())

    def mean(self, x: Any, axis: int | None = None) -> Any:
        return tf.reduce_mean(x, axis)

    def tanh(self, x: Any) -> Any:
        return tf.tanh(x)

    def cast(self, x: Any, dtype: str) -> Any:
        return tf.cast(x, dtype)

    def gradients(self, loss: Any, model: Any, state: Any) -> list[Any]:
        with state["tape"].stop_recording():
            return list(state["tape"].gradient(loss, model.trainable_variables))

    def make_model(self, layers: Layers) -> Any:
        made: list[Any] = [tf.keras.Input((layers[0][0].shape[0],))]
        for _, bias in layers:
            made += [tf.keras.layers.Dense(len(bias)), tf.keras.layers.Activation("tanh")]
        model = tf.keras.Sequential(made[:-1])
        model.set_weights([weight for layer in layers for weight in layer])
        return model

    def dense_layers(self, model: Any) -> list[Any]:
        return [layer for layer in model.layers if hasattr(layer, "kernel")]

    def layer_name(self, model: Any, place: int) -> str:
        return str(self.dense_layers(model)[place].name)

    def weights(self, model: Any) -> list[Array]:
        return [np.array(one) for one in model.get_weights()]

    def freeze(self, model: Any, place: int, frozen: bool = True) -> None:
        self.dense_layers(model)[place].trainable = not frozen

    def sgd(self, rate: float = 0.1, momentum: float = 0.0) -> Callable[..., Any]:
        return lambda: tf.keras.optimizers.SGD(rate, momentum=momentum)

    def adam(self, rate: float = 0.01) -> Callable[..., Any]:
        return lambda: tf.keras.optimizers.Adam(rate, epsilon=1e-10)

    def rate(self, model: Any) -> float:
        return float(model.current_optimizer.learning_rate.numpy())

    def set_rate(self, model: Any, rate: float) -> None:
        model.current_optimizer.learning_rate.assign(rate)


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Torch("torch"),
        CompiledTorch("torch-compiled"),
        TF("tf-static"),
        TF("tf-eager", eager=True),
    )
}


class TakeGradients(TensorOp):
    """Writes the gradients of a loss by what a model trains, times a factor."""

    def __init__(
        self, framework: Framework, model: Any, loss: str, outputs: str, factor: float = 1.0
    ) -> None:
        super().__init__(loss, outputs, mode="train")
        self.framework = framework
        self.model = model
        self.factor = factor

    def forward(self, data: Any, state: Any) -> list[Any]:
        found = self.framework.gradients(data, self.model, state)
        return [gradient * self.factor for gradient in found]


def make_layers(*sizes: int, seed: int = 0) -> list[tuple[Array, Array]]:
    """Draw the weights of dense layers."""
    source = np.random.default_rng(seed)
    return [
        (
            source.normal(size=(inputs, outputs)).astype("float32"),
            source.normal(size=outputs).astype("float32"),
        )
        for inputs, outputs in itertools.pairwise(sizes)
    ]


def map_nest(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply a function to what in a nest is no container."""
    if isinstance(value, (dict, ChainMap)):
        return {key: map_nest(one, fn) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map_nest(one, fn) for one in value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_nest(one, fn) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        changes = {name: map_nest(getattr(value, name), fn) for name in fields}
        return dataclasses.replace(value, **changes)
    return fn(value)
