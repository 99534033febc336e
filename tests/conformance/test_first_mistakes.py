"""Mistakes of a first program: each is an error, a note or a warning that names the fix."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.backend import get_lr, load_model, set_lr
from fastnet.errors import add_note
from fastnet.network import BaseNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.frameworks import Framework, make_layers, tf

X = np.ones((2, 3), "float32")
Y = np.zeros(2, "int64")


def classifying(fw: Framework, from_logits: bool = True) -> tuple[BaseNetwork, Any]:
    model = fw.build(make_layers(3, 4), fw.sgd(), name="m")
    loss = CrossEntropy(["y", "t"], "ce", from_logits=from_logits)
    return fw.network([ModelOp(model, "x", "y"), loss, UpdateOp(model, "ce")]), model


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("rate", ["fast", None, [0.1]])
def test_rate_that_is_no_number(fw: Framework, rate: Any) -> None:
    _, model = classifying(fw)
    with pytest.raises(TypeError, match=r"set_lr takes a number.*optimizer_fn"):
        set_lr(model, rate)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_rate_that_no_optimizer_has(fw: Framework, rate: float) -> None:
    _, model = classifying(fw)
    before = get_lr(model)
    with pytest.raises(ValueError, match=f"finite learning rate of at least 0, but got {rate}"):
        set_lr(model, rate)
    assert get_lr(model) == before


def test_batch_of_two_arguments(fw: Framework) -> None:
    network, _ = classifying(fw)
    with pytest.raises(TypeError) as caught, fw.opened(network, "train"):
        network.run_step(fw.tensor(X), fw.tensor(Y))  # type: ignore[call-arg]
    assert '`network.run_step({"x": x, "y": y})`' in text_of(caught.value)


def test_key_that_no_op_has_written(fw: Framework) -> None:
    network, _ = classifying(fw)
    with pytest.raises(KeyError) as caught, fw.opened(network, "train"):
        network.run_step({"x": fw.tensor(X), "t": fw.tensor(Y)})["loss"]
    text = text_of(caught.value)
    assert "'loss'" in text
    assert "['ce', 'y']" in text
    assert "network.explain(mode)" in text


def test_other_key_errors_get_no_note(fw: Framework) -> None:
    network, _ = classifying(fw)
    noted = KeyError("mine")
    add_note(noted, "a note")
    for error in (noted, KeyError("ce"), KeyError(3)):
        before = text_of(error)
        with pytest.raises(KeyError), fw.opened(network, "train"):
            raise error
        assert text_of(error) == before


ATTRIBUTES_OF_TRAINERS = {
    "fit": "fastnet.steps",
    "step": "network.run_step",
    "predict": "network.transform",
    "parameters": "network.models",
    "evaluate": "network.iter_transform",
    "forward": "network.transform",
    "run": "network.run_step",
    "eval": "mode=",
    "save": "fastnet.save_checkpoint",
    "optimizer": "model.current_optimizer",
    "train": "mode=",
    "to": "device=",
    "compile": "compile=True",
    "state_dict": "fastnet.save_checkpoint",
}


@pytest.mark.parametrize("name", ATTRIBUTES_OF_TRAINERS)
def test_attribute_of_a_trainer_or_model(fw: Framework, name: str) -> None:
    network, _ = classifying(fw)
    with pytest.raises(AttributeError, match=f"Network has no attribute '{name}'") as caught:
        getattr(network, name)
    assert ATTRIBUTES_OF_TRAINERS[name] in str(caught.value)
    assert not hasattr(network, name)


def test_attribute_that_nobody_expects(fw: Framework) -> None:
    network, _ = classifying(fw)
    with pytest.raises(AttributeError, match=r"^'\w+' object has no attribute 'nonsense'$"):
        network.nonsense  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("name", ["mine", "fit"])
def test_property_that_fails_keeps_its_error(fw: Framework, name: str) -> None:
    def fail(_: Any) -> None:
        raise AttributeError("of the property")

    network, _ = classifying(fw)
    kind = type(network)
    network.__class__ = type(kind.__name__, (kind,), {name: property(fail)})
    with pytest.raises(AttributeError, match=r"^of the property$"):
        getattr(network, name)


@pytest.mark.parametrize("dtype", ["float64", "uint8", "int64"])
@pytest.mark.parametrize("layer", ["linear", "conv", "lstm"])
@pytest.mark.parametrize("compile", [False, fastnet.CompileOptions(backend="eager")])
def test_array_of_another_dtype_than_the_model(dtype: str, layer: str, compile: Any) -> None:
    makers: Any = {
        "linear": lambda: torch.nn.Linear(4, 4),
        "conv": lambda: torch.nn.Conv2d(3, 4, 1),
        "lstm": lambda: torch.nn.LSTM(4, 4),
    }
    shape = (2, 3, 4, 4) if layer == "conv" else (2, 4)
    model = fastnet.build(makers[layer], "sgd")
    network = fastnet.Network([ModelOp(model, "image", "y")], compile=compile)
    with network("infer"):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            network.run_step({"image": np.ones(shape, dtype)})
        text = text_of(caught.value)
        assert f"'image' is {dtype}, and the parameters of the model are float32" in text
        assert 'astype("float32")' in text
        assert "y" in network.run_step({"image": np.ones(shape, "float32")})


def test_errors_of_other_causes_say_nothing_of_dtypes() -> None:
    model = fastnet.build(lambda: torch.nn.Embedding(5, 4), "sgd")
    network = fastnet.Network([ModelOp(model, "token", "y")])
    with pytest.raises(IndexError) as caught, network("infer"):
        network.run_step({"token": np.array([7])})
    assert "Cast it" not in text_of(caught.value)


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (np.array(["a", "b"]), "'t' is an array of strings, which"),
        (np.array([None, {}]), "'t' is an array of objects, which"),
        (np.zeros(2, ">i8"), "'t' is an array of another byte order"),
    ],
)
def test_array_that_is_not_converted(label: Any, text: str) -> None:
    network = fastnet.Network([CrossEntropy(["y", "t"], "ce", from_logits=True)])
    with pytest.raises(Exception) as caught, network("eval"):  # noqa: PT011 - torch's or Python's
        network.run_step({"y": torch.zeros(2, 3), "t": label})
    assert text in text_of(caught.value)


class _TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, token: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(token) + self.linear(feature)
        return embedded


def test_integers_beside_features_are_not_to_be_cast() -> None:
    model = fastnet.build(_TwoInputs, "sgd")
    network = fastnet.Network([ModelOp(model, ["token", "feature"], "y")])
    with pytest.raises(RuntimeError) as caught, network("infer"):
        network.run_step({"token": np.array([1, 2]), "feature": np.ones((2, 4))})
    text = text_of(caught.value)
    assert "'feature' is float64" in text
    assert "'token'" not in text.replace("inputs ['token', 'feature']", "")


def test_floats_as_indices_are_not_to_be_cast_to_float32() -> None:
    model = fastnet.build(lambda: torch.nn.Embedding(5, 4), "sgd")
    network = fastnet.Network([ModelOp(model, "token", "y")])
    with pytest.raises(RuntimeError) as caught, network("infer"):
        network.run_step({"token": np.array([1.0])})
    assert "Cast it" not in text_of(caught.value)


def test_type_error_of_integers_is_not_to_be_cast() -> None:
    class Faulty(torch.nn.Embedding):
        def forward(self, token: torch.Tensor) -> torch.Tensor:
            return token + {}  # type: ignore[operator, no-any-return]

    network = fastnet.Network([ModelOp(fastnet.build(lambda: Faulty(5, 4), "sgd"), "token", "y")])
    with pytest.raises(TypeError) as caught, network("infer"):
        network.run_step({"token": np.array([1])})
    assert "Cast it" not in text_of(caught.value)


@pytest.mark.parametrize(
    ("scores", "label", "advice"),
    [
        ((2, 3, 4, 5), (2, 4, 5), "axis=1)"),
        ((2, 4, 5, 3), (2, 4, 5), "axis=-1)"),
        ((2, 5, 7), (2, 5), "axis=-1)"),
        ((2, 7, 7), (2, 7), "axis=1), or axis=-1"),
        ((2, 3, 8, 9), (2, 1, 8, 9), "axis=1)"),
        ((2, 5, 7), (2, 6), None),
    ],
)
def test_several_classes_without_their_axis(
    fw: Framework, scores: tuple[int, ...], label: tuple[int, ...], advice: str | None
) -> None:
    batch = {"y": fw.tensor(np.zeros(scores, "float32")), "t": fw.tensor(np.zeros(label, "int64"))}
    network = fw.network([CrossEntropy(["y", "t"], "ce", from_logits=True)])
    with (
        pytest.raises(ValueError, match="CrossEntropy cannot compare") as caught,
        fw.opened(network, "eval"),
    ):
        network.run_step(batch)
    _, _, shown = str(caught.value).partition("CrossEntropy(..., ")
    assert shown == (f"{advice}." if advice else "")


def test_ops_that_are_no_list(fw: Framework) -> None:
    model = fw.build(make_layers(3, 4), fw.sgd(), name="m")
    ops = [ModelOp(model, "x", "y"), CrossEntropy(["y", "t"], "ce"), UpdateOp(model, "ce")]
    with pytest.raises(AssertionError, match=r"CrossEntropy.*Network\(\[op, op, \.\.\.\], pops\)"):
        fastnet.Network(*ops)


@pytest.mark.tf
def test_gradient_without_a_watch_in_keras() -> None:
    keras = pytest.importorskip("tensorflow").keras
    layers = [keras.layers.Input((3,)), keras.layers.Dense(1)]
    model = fastnet.build(lambda: keras.Sequential(layers), "sgd")
    ops = [
        ModelOp(model, "x", "y"),
        GradientOp("y", "slope", inputs="x"),
        LambdaOp(lambda slope: slope**2, "slope", "square"),
    ]
    with pytest.raises(TypeError) as caught, fastnet.Network(ops)("train") as network:
        network.run_step({"x": X})
    assert "Put a Watch in front of the op" in text_of(caught.value)
    assert "`return`" not in text_of(caught.value)


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    model = fastnet.build(lambda: torch.nn.Linear(3, 4), "sgd")
    network = fastnet.Network([ModelOp(model, "x", "y")])
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    with pytest.raises(ValueError, match="is a checkpoint, which load_checkpoint") as caught:
        load_model(model, path)
    assert "damaged" not in str(caught.value)


def test_class_of_a_model_that_takes_arguments(fw: Framework) -> None:
    class Sized(torch.nn.Linear if fw.target == "torch" else tf.keras.Sequential):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__()

    with pytest.raises(TypeError, match=r"Sized needs some: .*'size'.*`lambda: Sized\(\.\.\.\)`"):
        fastnet.build(Sized, "sgd")


def test_type_error_inside_of_model_fn(fw: Framework) -> None:
    with pytest.raises(TypeError, match=r"^mine$"):
        fastnet.build(lambda: (_ for _ in ()).throw(TypeError("mine")), "sgd")


def test_tuple_of_tensors(fw: Framework) -> None:
    network, _ = classifying(fw)
    x, y = fw.tensor(X), fw.tensor(Y)
    for data, example in (((x, y), '{"x": x, "y": y}'), ([x], '{"x": x, '), (x, '{"x": x}')):
        with pytest.raises(TypeError, match="transform takes a batch") as caught:
            network.transform(data, "eval")  # type: ignore[call-overload]
        assert example in str(caught.value)


def test_parameters_on_the_meta_device() -> None:
    with pytest.raises(ValueError, match=r"'weight' of model 'm' has no values.*to_empty"):
        fastnet.build(lambda: torch.nn.Linear(2, 1, device="meta"), "sgd", model_name="m")


def test_logits_where_probabilities_are_expected(fw: Framework) -> None:
    network, _ = classifying(fw, from_logits=False)
    told = r"CrossEntropy.*'y'.* 'm'.*from_logits=True"
    with pytest.warns(UserWarning, match=told), fw.opened(network, "train"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with fw.opened(network, "train"):
            pass


def test_probabilities_cause_no_warning(fw: Framework) -> None:
    def make() -> Any:
        if fw.target == "torch":
            return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softmax(1))
        dense = tf.keras.layers.Dense(4, "softmax")
        return tf.keras.Sequential(
            [tf.keras.Input((3,)), dense, tf.keras.layers.Activation("linear")]
        )

    model = fastnet.build(make, fw.sgd(), model_name="m")
    ops = [ModelOp(model, "x", "y"), CrossEntropy(["y", "t"], "ce"), UpdateOp(model, "ce")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with fw.opened(fw.network(ops), "train"):
            pass
        with fw.opened(classifying(fw)[0], "train"):
            pass


@pytest.mark.tf
def test_logits_of_a_functional_model() -> None:
    keras = pytest.importorskip("tensorflow").keras
    image = keras.layers.Input((3,))
    model = fastnet.build(lambda: keras.Model(image, keras.layers.Dense(4)(image)), "sgd")
    network = fastnet.Network([ModelOp(model, "x", "y"), CrossEntropy(["y", "t"], "ce")])
    with pytest.warns(UserWarning, match="from_logits=True"), network("eval"):
        pass
