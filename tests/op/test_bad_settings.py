"""What each op refuses when it is made, and in which words: each names the op's class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.op import numpyop, tensorop
from fastnet.op.numpyop import meta as numpy_meta
from fastnet.op.numpyop import univariate
from fastnet.op.tensorop import augmentation, gradient, loss, meta
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Model
from tests import refusals

# without the types of what it is called with, which are wrong on purpose
partial: Any = functools.partial

PAIR = ("p", "t")
LOSSES = [
    loss.CrossEntropy,
    loss.DiceLoss,
    loss.FocalLoss,
    loss.Hinge,
    loss.L1_Loss,
    loss.MeanSquaredError,
]


@pytest.fixture(scope="module")
def model() -> Model:
    return fastnet.build(lambda: torch.nn.Linear(3, 2), "sgd", model_name="m")


def refusal(make: Callable[[], Any], kind: type[Exception] = ValueError) -> str:
    return refusals.refusal(kind, lambda: in_a_network(make()))


def in_a_network(op: Any) -> fastnet.network.TorchNetwork:
    """Make a network of an op, which then has to have the keys that it reads and writes."""
    if isinstance(op, numpyop.NumpyOp):
        return fastnet.network.TorchNetwork([], op)
    return fastnet.network.TorchNetwork([op])


class TestKeys:
    @pytest.mark.parametrize("cls", LOSSES)
    @pytest.mark.parametrize("outputs", [None, [], ["y", "z"]])
    def test_a_loss_writes_one(self, cls: Any, outputs: Any) -> None:
        assert refusal(lambda: cls(PAIR, outputs)) == (
            f"{cls.__name__} writes one key, the loss, but its outputs are {outputs or []}."
        )

    @pytest.mark.parametrize("cls", LOSSES)
    def test_a_loss_may_name_its_one_in_a_list(self, cls: Any) -> None:
        op = cls(PAIR, ["y"])
        assert op.outputs == ["y"]
        value = op.forward([torch.full((2, 1, 1, 1), 0.25), torch.ones(2, 1, 1, 1)], {})
        assert value.shape == ()
        # in a network too it is the loss that is stored, and not a list of it
        network = fastnet.network.TorchNetwork([cls(PAIR, ["y"])])
        with network("eval", 1):
            batch = {"p": torch.full((2, 1, 1, 1), 0.25), "t": torch.ones(2, 1, 1, 1)}
            assert network.run_step(batch)["y"].shape == ()

    @pytest.mark.parametrize("cls", LOSSES)
    @pytest.mark.parametrize("inputs", [None, "p", ["p", "t", "w"]])
    def test_a_loss_reads_two(self, cls: Any, inputs: Any) -> None:
        given = [inputs] if isinstance(inputs, str) else inputs or []
        assert refusal(lambda: cls(inputs, "y")) == (
            f"{cls.__name__} reads two keys, the predictions and the truth, but its inputs are "
            f"{given}."
        )

    @pytest.mark.parametrize("cls", LOSSES)
    def test_a_loss_by_hand_has_any(self, cls: Any) -> None:
        """As in users' tests of an op, which call it with what its keys would stand for."""
        pair = [torch.full((2, 1, 1, 1), 0.25), torch.ones(2, 1, 1, 1)]
        wanted = cls(PAIR, "y").forward(pair, {})
        for keys in ("x", None, ["a", "b", "c"]):
            op = cls(inputs=keys, outputs=keys)
            assert torch.equal(op.forward(pair, {}), wanted)
            op.build("torch", torch.device("cpu"))
            assert torch.equal(op.forward(pair, {}), wanted)
            with pytest.raises(ValueError, match=cls.__name__):
                in_a_network(op)

    def test_other_ops_by_hand_have_any(self) -> None:
        x = torch.arange(6.0)
        reshape = tensorop.LambdaOp(fn=torch.reshape)
        reshape.build("torch", torch.device("cpu"))
        assert reshape.forward([x, (2, 3)], {}).shape == (2, 3)
        assert numpyop.LambdaOp(fn=np.reshape).forward([x.numpy(), (2, 3)], {}).shape == (2, 3)
        assert tensorop.Average(None, None).forward([x, x + 2], {}).tolist() == (x + 1).tolist()
        assert tensorop.Argmax([], []).forward([x], {})[0] == 5
        assert univariate.Minmax(["a"], ["y", "z"]).forward([x.numpy()], {})[0].max() == 1

    @pytest.mark.parametrize("kind", ["meta", "super", "scheduled"])
    def test_those_inside_of_others(self, kind: str) -> None:
        op: Any = loss.Hinge("p", "y")
        if kind == "meta":
            op = meta.Sometimes(tensorop.Average([], "p"))
        elif kind == "super":
            op = loss.SuperLoss(op)
        else:
            op = fastnet.schedule.EpochScheduler({1: None, 3: op})
        with pytest.raises(ValueError, match=r"(Hinge reads two keys|Average writes one output), "):
            fastnet.network.TorchNetwork([op])

    @pytest.mark.parametrize(("setting", "key"), [("loss_name", None), ("loss_name", ["a", "b"])])
    def test_an_update_reads_one_loss(self, model: Model, setting: str, key: Any) -> None:
        assert refusal(lambda: UpdateOp(model, key)) == (
            f"UpdateOp of 'm' reads one key as its {setting}, but got {key!r}."
        )

    def test_an_update_reads_one_key_of_gradients(self, model: Model) -> None:
        assert refusal(partial(UpdateOp, model, "l", gradients=["g"])) == (
            "UpdateOp of 'm' reads one key as its gradients, but got ['g']."
        )

    def test_gradients_of_nothing(self, model: Model) -> None:
        text = refusal(lambda: gradient.GradientOp([], [], model=model), AssertionError)
        assert text == (
            "GradientOp writes one output for each of its finals, by one input each, but its "
            "finals are [], its outputs [] and its inputs []."
        )

    @pytest.mark.parametrize(
        ("data", "key", "setting"), [(["a", "b"], "l", "data"), ("x", None, "loss")]
    )
    def test_fgsm_reads_one_of_each(self, data: Any, key: Any, setting: str) -> None:
        got = data if setting == "data" else key
        assert refusal(lambda: gradient.FGSM(data, key, "y")) == (
            f"FGSM reads one key as its {setting}, but got {got!r}."
        )

    @pytest.mark.parametrize(
        ("cls", "does"), [(tensorop.Delete, "drop"), (numpyop.Delete, "remove")]
    )
    @pytest.mark.parametrize("keys", [None, []])
    def test_delete_needs_one(self, cls: Any, does: str, keys: Any) -> None:
        assert refusal(lambda: cls(keys)) == f"Delete has nothing to {does}: give it a key."

    @pytest.mark.parametrize("cls", [tensorop.Argmax, loss.Hinge, univariate.Minmax])
    def test_malformed_ones(self, cls: Any) -> None:
        name = cls.__name__
        assert refusal(lambda: cls(["a", 3], "y"), TypeError) == (
            f"{name}: An input or output key must be a string, but got 3 of type int."
        )
        assert refusal(lambda: cls("a", ""), AssertionError) == (
            f"{name}: An input or output key is an empty string. Give it a name."
        )
        assert refusal(lambda: cls("a", "y", mode="trian"), AssertionError) == (
            f"{name}: Unknown mode: 'trian'. A mode is one of train, eval, test, infer, or one of "
            "them with a leading '!' to run in all the others."
        )
        assert refusal(lambda: cls("a", "y", ds_id=["b:c"]), AssertionError) == (
            f"{name}: The dataset id 'b:c' contains ':', which ids may not. Rename it."
        )


class TestModels:
    @pytest.mark.parametrize("cls", [ModelOp, UpdateOp])
    @pytest.mark.parametrize("given", [None, 3, torch.nn.Linear, torch.nn.Linear(1, 1)])
    def test_one_that_was_not_built(self, cls: Any, given: Any) -> None:
        assert refusal(lambda: cls(given, "x"), AssertionError) == (
            f"{cls.__name__} takes a model that fastnet.build has made ready, but this "
            f"{type(given).__name__} is not. Pass it through fastnet.build first."
        )

    @pytest.mark.parametrize("cls", [loss.L2Regularization, loss.L2Regularizaton])
    @pytest.mark.parametrize("given", [None, 3, torch.nn.Linear])
    def test_none_at_all(self, cls: Any, given: Any) -> None:
        assert refusal(lambda: cls("a", "y", model=given)) == (
            f"{cls.__name__}'s model is a torch.nn.Module or a Keras model, not "
            f"{type(given).__name__}."
        )

    def test_gradients_by_none_at_all(self) -> None:
        text = refusal(lambda: gradient.GradientOp("l", "g", model=3), AssertionError)
        assert text == "GradientOp's model is a torch.nn.Module or a Keras model, not int."

    @pytest.mark.parametrize("make", [ModelOp, UpdateOp])
    def test_one_of_another_framework(self, model: Model, make: Any) -> None:
        op = make(model, "x")
        assert refusal(lambda: op.build("tf")) == (
            f"{make.__name__} of 'm' holds a model of framework 'torch', but its network runs on "
            "'tf'. Put models of one framework into a network."
        )

    def test_weights_of_one_of_another_framework(self, model: Model) -> None:
        op = loss.L2Regularization("a", "y", model=model)
        assert refusal(lambda: op.build("tf")) == (
            "L2Regularization of 'm' holds a model of framework 'torch', but its network runs on "
            "'tf'. Put models of one framework into a network."
        )

    @pytest.mark.parametrize("built", [True, False])
    def test_gradients_by_one_of_another_framework(self, model: Model, built: bool) -> None:
        given = model if built else torch.nn.Linear(1, 1)
        op = gradient.GradientOp("l", "g", model=given)
        assert refusal(lambda: op.build("tf")) == (
            f"GradientOp of '{'m' if built else 'Linear'}' holds a model of framework 'torch', but "
            "its network runs on 'tf'. Put models of one framework into a network."
        )
        op.build("torch", torch.device("cpu"))


class Scaler:
    """A function that an object is."""

    def __call__(self, x: Any, factor: Any) -> Any:
        return x * factor


class TestFunctions:
    @pytest.mark.parametrize(
        ("cls", "name"),
        [
            (tensorop.LambdaOp, "fn"),
            (numpyop.LambdaOp, "fn"),
            (numpyop.RemoveIf, "fn"),
            (partial(numpyop.Batch, 2, False, None), "collate_fn"),
        ],
    )
    @pytest.mark.parametrize(("given", "got"), [(3, "3 of type int"), ("x", "'x' of type str")])
    def test_what_cannot_be_called(self, cls: Any, name: str, given: Any, got: str) -> None:
        op = getattr(cls, "func", cls).__name__
        assert refusal(lambda: cls(given), TypeError) == f"{op}'s {name} is a function, not {got}."

    @pytest.mark.parametrize("cls", [tensorop.LambdaOp, numpyop.LambdaOp, numpyop.RemoveIf])
    @pytest.mark.parametrize(
        ("fn", "keys", "takes", "why"),
        [
            (lambda x: x, ["a", "b"], "(x)", "too many positional arguments"),
            (lambda x, y: x, "a", "(x, y)", "missing a required argument: 'y'"),
            (lambda x: x, None, "(x)", "missing a required argument: 'x'"),
            (lambda: 1, "a", "()", "too many positional arguments"),
            (Scaler(), ["a"], "(x: 'Any', factor: 'Any') -> 'Any'", "missing a required argument"),
        ],
    )
    def test_what_takes_another_count_of_values(
        self, cls: Any, fn: Any, keys: Any, takes: str, why: str
    ) -> None:
        given = [keys] if isinstance(keys, str) else keys or []
        assert refusal(lambda: cls(fn, inputs=keys)).startswith(
            f"{cls.__name__} calls its fn with one argument for each input, but its inputs are "
            f"{given}, and the fn takes {takes}: {why}"
        )

    @pytest.mark.parametrize("cls", [tensorop.LambdaOp, numpyop.LambdaOp, numpyop.RemoveIf])
    @pytest.mark.parametrize(
        ("fn", "keys"),
        [
            (lambda *values: values, ["a", "b", "c"]),
            (lambda x, y=1: x, "a"),
            (lambda: 1, None),
            (functools.partial(Scaler(), factor=2), "a"),
            (torch.nn.Linear(1, 1), "a"),
            (torch.add, ["a", "b"]),
            # which do not tell what they take
            (np.add, ["a", "b"]),
            (max, ["a", "b"]),
        ],
    )
    def test_what_takes_as_many(self, cls: Any, fn: Any, keys: Any) -> None:
        assert cls(fn, inputs=keys).in_list

    @pytest.mark.parametrize(
        ("cls", "op"),
        [
            (meta.Repeat, tensorop.TensorOp("x", "x")),
            (numpy_meta.Repeat, numpyop.NumpyOp("x", "x")),
        ],
    )
    def test_a_condition_whose_arguments_have_no_names(self, cls: Any, op: Any) -> None:
        assert refusal(lambda: cls(op, max), TypeError) == (
            "Repeat's repeat is a function whose arguments are called like the keys that it reads, "
            "but <built-in function max> does not tell what its own are called. Put a lambda "
            "around it."
        )


def inner() -> tensorop.LambdaOp:
    return tensorop.LambdaOp(lambda x: x, "x", "x")


NOT_A_SHAPE = (
    "Reshape's shape is a length or several, of which one can be -1, to be worked out, but got "
)
NOT_AN_ORDER = "Permute's permutation has each axis in it once, counted from 0, but got "
NOT_AXES = "ChannelTranspose's axes are each axis of a sample once, in any order, counted from 0, "


class TestShapes:
    @pytest.mark.parametrize("shape", [(-1, -1), (1.5, 2), (-2, 2), None, "ab", 1.5])
    def test_reshape(self, shape: Any) -> None:
        expected = f"{NOT_A_SHAPE}{shape!r}."
        assert refusal(lambda: tensorop.Reshape("x", "y", shape=shape)) == expected
        assert refusal(lambda: univariate.Reshape(shape, "x", "y")) == expected

    @pytest.mark.parametrize("order", [(0, 0, 1), (), (0.0, 1.0), "ab", 1, (0, 5, 1), (0, -4, 1)])
    def test_permute(self, order: Any) -> None:
        made = partial(tensorop.Permute, "x", "y", permutation=order)
        assert refusal(made) == f"{NOT_AN_ORDER}{order!r}."
        other = partial(univariate.ChannelTranspose, "x", "y", axes=order)
        assert refusal(other) == f"{NOT_AXES}but got {order!r}."

    @pytest.mark.parametrize("shape", [(1, 1), (0, 1, 1), (1.5, 1, 1), 3, (-1, 2, 2), None])
    def test_resize_3d(self, shape: Any) -> None:
        assert refusal(lambda: tensorop.Resize3D("x", "y", shape)) == (
            "Resize3D's output_shape is a height, a width and a depth, without batch and channels, "
            f"not {shape!r}."
        )

    def test_normalize(self) -> None:
        made = partial(tensorop.Normalize, "x", "y", mean=(0.5, 0.5), std=(1.0, 1.0, 1.0))
        assert refusal(made) == (
            "Normalize's mean and std are for as many channels, but there are 2 and 3 of them."
        )

    @pytest.mark.parametrize("name", ["mean", "std"])
    @pytest.mark.parametrize("given", [None, "abc", ("a", 0.5), ()])
    def test_normalize_by_what_is_no_number(self, name: str, given: Any) -> None:
        assert refusal(lambda: tensorop.Normalize("x", "y", **{name: given})) == (
            f"Normalize's {name} is a number, or one a channel, not {given!r}."
        )

    def test_normalize_by_arrays(self) -> None:
        made = partial(tensorop.Normalize, "x", "y", mean=np.ones(3))
        assert refusal(partial(made, std=np.ones(2))) == (
            "Normalize's mean and std are for as many channels, but there are 3 and 2 of them."
        )
        assert made(std=np.float32(2)).std == 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (partial(tensorop.Argmax, "x", "y", axis="a"), "Argmax's axis is an int, not 'a'."),
        (partial(tensorop.Argmax, "x", "y", axis=1.5), "Argmax's axis is an int, not 1.5."),
        (
            partial(tensorop.Normalize, "x", "y", max_pixel_value=0),
            "Normalize's max_pixel_value is more than 0, not 0.",
        ),
        (
            partial(tensorop.UnHadamard, "x", "y", n_classes=0),
            "UnHadamard's n_classes is an int of at least 1, not 0.",
        ),
        (
            partial(univariate.Hadamard, "x", "y", n_classes=2.0),
            "Hadamard's n_classes is an int of at least 1, not 2.0.",
        ),
        (
            partial(univariate.Onehot, "x", "y", num_classes="3"),
            "Onehot's num_classes is an int of at least 1, not '3'.",
        ),
        (
            partial(univariate.Onehot, "x", "y", num_classes=3, label_smoothing=1.5),
            "Onehot's label_smoothing is from 0 to 1, not 1.5.",
        ),
        (
            partial(univariate.ExpandDims, "x", "y", axis=None),
            "ExpandDims's axis is an int, not None.",
        ),
        (
            partial(univariate.Binarize, None, "x", "y"),
            "Binarize's threshold is a number, not None.",
        ),
        (
            partial(univariate.ToArray, "x", "y", dtype="floot"),
            "ToArray's dtype is a type of numpy's, not 'floot'.",
        ),
        (
            partial(gradient.FGSM, "x", "l", "y", epsilon="a"),
            "FGSM's epsilon is a number, not 'a'.",
        ),
        (
            partial(gradient.FGSM, "x", "l", "y", clip_low="a"),
            "FGSM's clip_low is a number or None, not 'a'.",
        ),
        (
            partial(gradient.FGSM, "x", "l", "y", clip_low=0.5, clip_high=-0.5),
            "FGSM's clip_low is not more than its clip_high, but they are 0.5 and -0.5.",
        ),
        (
            partial(univariate.Minmax, "x", "y", epsilon="x"),
            "Minmax's epsilon is a number, not 'x'.",
        ),
        (
            partial(univariate.Minmax, "x", "y", new_max=None),
            "Minmax's new_max is a number, not None.",
        ),
        (
            partial(loss.L1_Loss, PAIR, "y", beta="1"),
            "L1_Loss's beta is more than 0, not '1'.",
        ),
        (
            partial(loss.FocalLoss, PAIR, "y", gamma="a"),
            "FocalLoss's gamma is 0 or more, not 'a'.",
        ),
        (
            partial(loss.SuperLoss, loss.Hinge(PAIR, "y"), regularization="a"),
            "SuperLoss's regularization is more than 0, not 'a'.",
        ),
        (
            partial(loss.SuperLoss, loss.Hinge(PAIR, "y"), threshold=None),
            "SuperLoss's threshold is a number or 'exp', not None.",
        ),
        (
            partial(loss.SuperLoss, inner()),
            "SuperLoss is around a loss that writes one bare output, not around LambdaOp.",
        ),
        (
            partial(loss.DiceLoss, PAIR, "y", epsilon="x"),
            "DiceLoss's epsilon is a number, not 'x'.",
        ),
        (
            partial(loss.L2Regularizaton, "a", "y", model=torch.nn.Linear(1, 1), beta="x"),
            "L2Regularizaton's beta is a number, not 'x'.",
        ),
        (
            partial(meta.Sometimes, inner(), "a"),
            "Sometimes has a probability from 0 to 1, not 'a'.",
        ),
        (
            partial(numpy_meta.Sometimes, numpyop.NumpyOp("x", "x"), None),
            "Sometimes has a probability from 0 to 1, not None.",
        ),
        (
            partial(meta.Repeat, inner(), len, max_iter="a"),
            "Repeat's max_iter is at least 1, not 'a'.",
        ),
        (
            partial(numpy_meta.Repeat, numpyop.NumpyOp("x", "x"), len, max_iter=1.5),
            "Repeat's max_iter is at least 1, not 1.5.",
        ),
    ],
)
def test_numbers(make: Callable[[], Any], text: str) -> None:
    assert refusal(make) == text


@pytest.mark.parametrize(("low", "high"), [(None, -1.0), (1.0, 0), (0, 0), (0.5, 0.5)])
def test_limits_that_are_fine(low: Any, high: Any) -> None:
    op = gradient.FGSM("x", "l", "y", clip_low=low, clip_high=high)
    assert (op.clip_low, op.clip_high) == (low, high)


@pytest.mark.parametrize("merge", [0, 1.5, "2"])
def test_merged_steps(model: Model, merge: Any) -> None:
    assert refusal(lambda: UpdateOp(model, "l", merge_grad=merge)) == (
        f"UpdateOp of 'm' has merge_grad={merge!r}; it is an int, and the least is 1."
    )


@pytest.mark.parametrize("cls", [augmentation.CutMixBatch, augmentation.MixUpBatch])
def test_mixing(cls: Any) -> None:
    made = partial(cls, PAIR, PAIR, alpha="a")
    assert refusal(made, AssertionError) == f"{cls.__name__}'s alpha is more than 0, not 'a'."


@pytest.mark.parametrize("probs", [0.5, ["a", "b"], (1.0,)])
def test_probabilities(probs: Any) -> None:
    text = (
        f"OneOf's probs are one probability for each of its 2 ops, adding up to 1, not {probs!r}."
    )
    made = partial(meta.OneOf, inner(), inner(), probs=probs)
    assert refusal(made, AssertionError) == text
    ops = [numpyop.NumpyOp("x", "x"), numpyop.NumpyOp("x", "x")]
    assert refusal(partial(numpy_meta.OneOf, *ops, probs=probs), AssertionError) == text


@pytest.mark.parametrize("probs", [None, [], (), np.array([0.5, 0.5])])
def test_probabilities_that_are_fine(probs: Any) -> None:
    assert meta.OneOf(inner(), inner(), probs=probs).probs == [0.5, 0.5]
    ops = [numpyop.NumpyOp("x", "x"), numpyop.NumpyOp("x", "x")]
    given = probs is not None and len(probs) > 0
    assert numpy_meta.OneOf(*ops, probs=probs).probs == ([0.5, 0.5] if given else None)


@pytest.mark.parametrize("index", [-1, -3])
def test_dice_loss_of_a_channel_that_is_none(index: int) -> None:
    made = partial(loss.DiceLoss, PAIR, "y", channel_weights={index: 1.0})
    assert refusal(made, AssertionError) == (
        "The keys of DiceLoss's channel_weights are channel indices, counted from 0, but one is "
        f"{index}."
    )
