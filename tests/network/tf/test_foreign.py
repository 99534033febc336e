"""Tensors of other frameworks in the batches of TensorFlow networks, and TensorFlow's in others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastnet.network import TFNetwork, TorchNetwork
from tests.network.keras_models import infer, tf
from tests.network.strangers import STRANGERS, ArrayLike, Hostile, OnDevice
from tests.network.tf_programs import EITHER_WAY, FITS, Counting, Doing, first, ones, reasons
from tests.network.torch.test_foreign import NESTS, Seeing, leaf_of

pytestmark = pytest.mark.tf

MAKERS = [
    *STRANGERS,
    lambda values, dtype="float32": torch.tensor(values, dtype=getattr(torch, dtype)),
]


class TestInTensorFlow:
    @EITHER_WAY
    @pytest.mark.parametrize("make", MAKERS)
    @pytest.mark.parametrize("nest", NESTS)
    def test_are_tensors_for_ops_and_come_back_as_tensors(
        self, make: Any, nest: Any, eager: bool
    ) -> None:
        op = Seeing("x", "y")
        stranger = make([1.0, 2.0])
        batch = {"x": nest(stranger), "rest": stranger}
        network = TFNetwork(op)
        for _ in range(3):
            result = infer(network, batch, eager=eager)
            assert tf.is_tensor(leaf_of(op.seen))
            for data in (result["x"], result["y"]):
                assert type(data) is type(nest(ones(2)))
                assert tf.is_tensor(leaf_of(data))
                assert leaf_of(data).numpy().tolist() == [1.0, 2.0]
            assert result["rest"] is stranger
        assert len(network.traces) == (0 if eager else 1)

    def test_fit_what_was_traced_for_tensors(self) -> None:
        network = TFNetwork(Doing(lambda x, state: 2 * x, "x", "y"))
        for size in (3, 3, 2, 1):
            for make in (
                ones,
                torch.ones,
                lambda n: np.ones(n, "float32"),
                lambda n: ArrayLike([1.0] * n),
            ):
                result = infer(network, {"x": make(size)})
                assert result["y"].numpy().tolist() == [2.0] * size
        assert reasons(network) == [first(), f"'x' has the shape (2), where (3) was traced{FITS}"]

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "bfloat16"])
    def test_of_torch_keep_their_types(self, dtype: str) -> None:
        op = Seeing("x", "y")
        network = TFNetwork(op)
        result = infer(network, {"x": torch.tensor([1, 0]).to(getattr(torch, dtype))})
        assert result["y"].dtype == dtype

    def test_of_torch_that_take_gradients_or_are_conjugated(self) -> None:
        network = TFNetwork(Counting("x", "y"))
        leaf = torch.ones(2, requires_grad=True)
        assert infer(network, {"x": 2 * leaf})["y"].numpy().tolist() == [2.0, 2.0]
        value = torch.tensor([1 + 2j]).conj()
        assert infer(network, {"x": value})["y"].numpy().tolist() == [1 - 2j]

    def test_are_copies(self) -> None:
        network = TFNetwork(Counting("x", "y"))
        for make in (torch.ones, lambda n: OnDevice(np.ones(n))):
            value = make(2)
            result = infer(network, {"x": value})
            (value if torch.is_tensor(value) else value.values).zero_()
            assert result["x"].numpy().tolist() == [1.0, 1.0]
            assert result["y"].numpy().tolist() == [1.0, 1.0]

    @EITHER_WAY
    def test_that_give_no_values_stay_as_they_are(self, eager: bool) -> None:
        hostile = Hostile()
        network = TFNetwork(Counting("x", "y"))
        for _ in range(2):
            assert infer(network, {"x": hostile}, eager=eager)["y"] is hostile

    @EITHER_WAY
    def test_arrays_come_back_as_they_were_given(self, eager: bool) -> None:
        op = Seeing("x", "y")
        network = TFNetwork(op)
        batch = {"x": {"a": [np.ones(2), torch.ones(2)]}}
        result = infer(network, batch, eager=eager)
        array, tensor = result["x"]["a"]
        assert array is batch["x"]["a"][0]
        assert tf.is_tensor(tensor)
        assert all(map(tf.is_tensor, op.seen["a"]))


class TestOfTensorFlow:
    """In torch networks."""

    @pytest.mark.parametrize("nest", NESTS)
    def test_are_tensors_of_torch(self, nest: Any) -> None:
        op = Seeing("x", "y")
        network = TorchNetwork(op)
        value = tf.constant([1.0, 2.0])
        with network(mode="infer", epoch=1):
            result = network.run_step({"x": nest(value), "rest": value})
        for data in (op.seen, result["x"], result["y"]):
            assert type(leaf_of(data)) is torch.Tensor
            assert leaf_of(data).tolist() == [1.0, 2.0]
        assert result["rest"] is value

    @pytest.mark.parametrize(
        "dtype", ["float32", "float16", "bfloat16", "int32", "bool", "complex64"]
    )
    def test_keep_their_types(self, dtype: str) -> None:
        op = Seeing("x", "y")
        with TorchNetwork(op)(mode="infer", epoch=1) as network:
            network.run_step({"x": tf.cast([1, 0], dtype)})
        assert op.seen.dtype is getattr(torch, dtype)
        assert op.seen.to(torch.complex64).real.tolist() == [1.0, 0.0]

    def test_ragged_ones_and_texts_stay_as_they_are(self) -> None:
        op = Seeing("x", "y")
        with TorchNetwork(op)(mode="infer", epoch=1) as network:
            for value in (tf.ragged.constant([[1], [2, 3]]), tf.constant(["a"])):
                network.run_step({"x": value})
                assert op.seen is value
