"""Ops called by hand, with keys that mean nothing: made, built and run as FastEstimator's are.

A program that calls an op itself names whatever keys it likes. Only a network goes by them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="compares with FastEstimator: `make test-fe`")

import tensorflow as tf
import torch

pytestmark = pytest.mark.tf

ARRAY = np.linspace(0.1, 0.9, 6, dtype="float32").reshape(2, 3)
OTHER = np.float32([[0, 1, 0], [1, 0, 0]])
IMAGES = np.linspace(0, 1, 2 * 4 * 4 * 4, dtype="float32").reshape(2, 4, 4, 4)
VOLUMES = np.linspace(0, 1, 64, dtype="float32").reshape(1, 1, 4, 4, 4)
# none, one of one name, several or too many of a list or a tuple
INPUTS = [None, "x", [], ["x"], ["x", "y"], ["x", "y", "z"], ("x", "y")]
OUTPUTS = [None, "x", [], ["o"], ["o", "p"], ["o", "p", "q"]]


def same(*values: Any) -> Any:
    return values[0]


class Case(NamedTuple):
    path: str
    data: Any
    settings: dict[str, Any] = {}  # noqa: RUF012
    inputs: str = "inputs"
    outputs: str | None = "outputs"

    def __str__(self) -> str:
        return f"{self.path}-{'-'.join(self.settings)}"


LOSSES = "op.tensorop.loss."
TENSOR_OPS = [
    Case("op.tensorop.TensorOp", ARRAY),
    Case("op.tensorop.LambdaOp", [ARRAY, OTHER], {"fn": same}),
    Case("op.tensorop.Delete", [ARRAY], {}, "keys", None),
    Case("op.tensorop.Argmax", [ARRAY]),
    Case("op.tensorop.Average", [ARRAY, OTHER]),
    Case("op.tensorop.Gather", [np.int64([1, 0]), ARRAY], {"indices": "at"}),
    Case("op.tensorop.Permute", IMAGES, {"permutation": (0, 3, 1, 2)}),
    Case("op.tensorop.Reshape", [ARRAY], {"shape": [-1]}),
    Case("op.tensorop.Resize3D", [VOLUMES], {"output_shape": [2, 2, 2]}),
    Case("op.tensorop.UnHadamard", [OTHER[:, :2]], {"n_classes": 2}),
    Case(LOSSES + "CrossEntropy", [ARRAY, OTHER]),
    Case(LOSSES + "CrossEntropy", [ARRAY, OTHER], {"form": "categorical", "average_loss": False}),
    Case(LOSSES + "CrossEntropy", [ARRAY, OTHER[:, 0]], {"form": "sparse"}),
    Case(LOSSES + "CrossEntropy", [ARRAY[:, :1], OTHER[:, :1]], {"form": "binary"}),
    Case(LOSSES + "MeanSquaredError", [ARRAY, OTHER]),
    Case(LOSSES + "L1_Loss", [ARRAY, OTHER]),
    Case(LOSSES + "L1_Loss", [ARRAY, OTHER], {"loss_type": "Smooth"}),
    Case(LOSSES + "L1_Loss", [ARRAY, OTHER], {"loss_type": "Huber"}),
    Case(LOSSES + "Hinge", [ARRAY, OTHER * 2 - 1]),
    Case(LOSSES + "DiceLoss", [IMAGES, np.round(IMAGES)]),
    Case(LOSSES + "FocalLoss", [ARRAY, OTHER]),
    Case("op.tensorop.gradient.Watch", [ARRAY], {}, "inputs", None),
]
UNIVARIATE = "op.numpyop.univariate."
NUMPY_OPS = [
    Case("op.numpyop.NumpyOp", ARRAY),
    Case("op.numpyop.LambdaOp", [ARRAY, OTHER], {"fn": same}),
    Case("op.numpyop.Delete", [ARRAY], {}, "keys", None),
    Case(UNIVARIATE + "Binarize", [ARRAY], {"threshold": 0.5}),
    Case(UNIVARIATE + "ChannelTranspose", [IMAGES[0]]),
    Case(UNIVARIATE + "ExpandDims", [ARRAY]),
    Case(UNIVARIATE + "Hadamard", [np.int64([1, 0])], {"n_classes": 2}),
    Case(UNIVARIATE + "Minmax", [ARRAY]),
    Case(UNIVARIATE + "Onehot", [np.int64(1)], {"num_classes": 3}),
    Case(UNIVARIATE + "Reshape", [ARRAY], {"shape": [-1]}),
    Case(UNIVARIATE + "ToArray", [[1.0, 2.0]]),
]


def class_of(library: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"{library}.{module}"), name)


def tensors(data: Any, framework: str) -> Any:
    if isinstance(data, list):
        return [tensors(one, framework) for one in data]
    return torch.from_numpy(data.copy()) if framework == "torch" else tf.convert_to_tensor(data)


def arrays(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [arrays(one) for one in value]
    if value is None:
        return None
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def state() -> dict[str, Any]:
    with tf.GradientTape(persistent=True) as tape:
        pass
    return {"mode": "train", "epoch": 1, "warmup": False, "deferred": {}, "tape": tape}


def outcome(make: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "fine", make()
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"


def check_both(makes: dict[str, Callable[[], Any]], use: Callable[[Any], Any], told: Any) -> bool:
    """Make an op in both libraries, and use it: what FastEstimator's does, fastnet's does."""
    made = {library: outcome(make) for library, make in makes.items()}
    if made["fastestimator"][0] != "fine":
        return False
    assert made["fastnet"][0] == "fine", (told, made["fastnet"][1])
    used = {library: outcome(lambda op=op: use(op)) for library, (_, op) in made.items()}
    if used["fastestimator"][0] != "fine":
        return False
    assert used["fastnet"][0] == "fine", (told, used["fastnet"][1])
    compare(used["fastnet"][1], used["fastestimator"][1])
    return True


def compare(own: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert len(own) == len(theirs)
        for one, other in zip(own, theirs, strict=True):
            compare(one, other)
    elif theirs is None:
        assert own is None
    else:
        np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)


def check_case(case: Case, use: Callable[[Any], Any]) -> None:
    ran = 0
    for inputs in INPUTS:
        for outputs in OUTPUTS if case.outputs else [None]:
            keys = {case.inputs: inputs, **({case.outputs: outputs} if case.outputs else {})}

            def make(library: str, keys: Any = keys) -> Any:
                # FastEstimator writes to the lists that it is given
                copies = {k: list(v) if isinstance(v, list) else v for k, v in keys.items()}
                return class_of(library, case.path)(**copies, **case.settings)

            makes = {
                library: lambda library=library, make=make: make(library)
                for library in ("fastestimator", "fastnet")
            }
            ran += check_both(makes, use, keys)
    assert ran


@pytest.mark.usefixtures("fastestimator")
class TestByHand:
    @pytest.mark.parametrize("framework", ["torch", "tf"])
    @pytest.mark.parametrize("case", TENSOR_OPS, ids=str)
    def test_tensor_op(self, case: Case, framework: str) -> None:
        def use(op: Any) -> Any:
            op.build(framework, torch.device("cpu") if framework == "torch" else None)
            return arrays(op.forward(tensors(case.data, framework), state()))

        check_case(case, use)

    @pytest.mark.parametrize("case", NUMPY_OPS, ids=str)
    def test_numpy_op(self, case: Case) -> None:
        check_case(case, lambda op: arrays(op.forward(case.data, {"mode": "train"})))

    @pytest.mark.parametrize("layers", [0, 1, [0], "0"])
    @pytest.mark.parametrize("outputs", [None, "y", ["y"], ["y", "z"]])
    def test_model_op(
        self, fastestimator: ModuleType, fastnet: ModuleType, layers: Any, outputs: Any
    ) -> None:
        makes = {}
        for library in (fastestimator, fastnet):
            torch.manual_seed(0)
            model = library.build(
                lambda: torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), "sgd"
            )
            cls = class_of(library.__name__, "op.tensorop.model.ModelOp")
            makes[library.__name__] = lambda cls=cls, model=model: cls(
                model, "x", outputs, intermediate_layers=layers
            )

        def use(op: Any) -> Any:
            op.build("torch", torch.device("cpu"))
            return arrays(op.forward(torch.from_numpy(ARRAY), state()))

        assert check_both(makes, use, layers)

    @pytest.mark.parametrize(
        "keys",
        [
            {"loss_name": None},
            {"loss_name": "l", "gradients": "g"},
            {"loss_name": "l", "gradients": ["g", "h"]},
            {"loss_name": None, "gradients": ["g"]},
        ],
    )
    def test_update_op(
        self, fastestimator: ModuleType, fastnet: ModuleType, keys: dict[str, Any]
    ) -> None:
        makes = {}
        for library in (fastestimator, fastnet):
            torch.manual_seed(0)
            model = library.build(
                lambda: torch.nn.Linear(3, 1), lambda p: torch.optim.SGD(p, lr=0.5)
            )
            cls = class_of(library.__name__, "op.tensorop.model.UpdateOp")
            makes[library.__name__] = lambda cls=cls, model=model: cls(model, **keys)

        def use(op: Any) -> Any:
            op.build("torch", torch.device("cpu"))
            loss = (op.model(torch.from_numpy(ARRAY)) ** 2).sum()
            data = loss
            if "gradients" in keys:
                data = list(torch.autograd.grad(loss, list(op.model.parameters())))
            op.forward(data, state())
            return arrays(list(op.model.parameters()))

        assert check_both(makes, use, keys)

    @pytest.mark.parametrize("data", ["x", ["x"], ["x", "y"], []])
    @pytest.mark.parametrize("loss", ["l", ["l"]])
    @pytest.mark.parametrize("outputs", [None, "o", ["o", "p"]])
    def test_fgsm(self, data: Any, loss: Any, outputs: Any) -> None:
        makes = {
            library: lambda library=library: class_of(library, "op.tensorop.gradient.FGSM")(
                data, loss, outputs
            )
            for library in ("fastestimator", "fastnet")
        }

        def use(op: Any) -> Any:
            op.build("torch", torch.device("cpu"))
            x = torch.tensor(ARRAY, requires_grad=True)
            return arrays(op.forward([x, (x**2).sum()], state()))

        assert check_both(makes, use, data)

    @pytest.mark.parametrize("finals", [None, [], "l", ["l", "m"]])
    def test_gradient_op_of_a_model(self, finals: Any) -> None:
        model = torch.nn.Linear(3, 1)
        makes = {
            library: lambda library=library: class_of(library, "op.tensorop.gradient.GradientOp")(
                finals, finals, model=model
            )
            for library in ("fastestimator", "fastnet")
        }

        def use(op: Any) -> Any:
            op.build("torch", torch.device("cpu"))
            y = model(torch.from_numpy(ARRAY))
            return arrays(op.forward([y.sum(), (y**2).sum()], state()))

        assert check_both(makes, use, finals)
