"""What runs networks of the toy framework, and its entry in the table of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastnet._nest import NestMap
from fastnet.backend.facts import name_of
from fastnet.backend.foreign import NUMPY, adopter
from fastnet.backend.model_update import ModelUpdate
from fastnet.frameworks import Framework
from fastnet.network import BaseNetwork
from fastnet.network.context import NetworkContext, Runner
from fastnet.network.execution_plan import Handling
from tests.network.toy import Model, Tensor, differentiate
from tests.network.toy.functions import convert

FOREIGN = adopter((Tensor, *NUMPY), convert)
ARRAYS = adopter((Tensor,), convert)


class ToyNetwork(BaseNetwork):
    def __init__(self, ops: Any, postprocessing: Any = None, slicers: Any = None) -> None:
        super().__init__("toy", None, ops, postprocessing, slicers)

    def _handling(self) -> Handling:
        return Handling(
            adopt=(Tensor, FOREIGN, ARRAYS), release=NestMap(Tensor, lambda one: one.detached())
        )

    def _make_runner(self, context: NetworkContext) -> Runner:
        return ToyRunner(context)


class ToyRunner(Runner):
    def open(self) -> None:
        for model in self.context.plan.models:
            model.is_open = True

    def close(self) -> None:
        for model in self.context.plan.models:
            model.is_open = False


class ToyPass:
    def __init__(
        self,
        model: Model,
        inputs: Sequence[str],
        trainable: bool,
        gradients: bool,
        layers: Sequence[str | int],
        split: Callable[[Any], Iterable[Any]],
    ) -> None:
        self._model = model

    def __call__(self, data: Any, state: Any) -> Any:
        return self._model(data)

    def close(self) -> None:
        pass


class ToyUpdate(ModelUpdate):
    trained = "weights"

    def __init__(self, op: Any) -> None:
        super().__init__(op, device_count=1)

    def __call__(self, data: Any, state: Any, op: Any, defer: bool, retain_graph: bool) -> None:
        if state["warmup"]:
            return
        optimizer, weights = self._optimizer(), self._model.weights
        if self._given:
            self._require_gradients(data, len(weights))
            gradients = data
        elif isinstance(data, Tensor):
            gradients = differentiate(data.mean(), weights)
        else:
            raise self._no_loss(data)
        if defer or op.defer:
            later = state["deferred"].setdefault(name_of(self._model), [])
            later.append(lambda: optimizer.step(weights, gradients))
        else:
            optimizer.step(weights, gradients)

    def merged(self) -> tuple[int, list[Any]]:
        return 0, []

    def complaint_about(self, times: int, gradients: Sequence[Any]) -> str | None:
        return "is of a framework that adds no gradients up"

    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        pass


TOY = Framework(
    "toy",
    library="tests.network.toy",
    tensors=("Tensor",),
    package="tests.network.toy.functions",
    models=("tests.network.toy:Model",),
    network="tests.network.toy.running:ToyNetwork",
    model_pass="tests.network.toy.running:ToyPass",
    update="tests.network.toy.running:ToyUpdate",
)
