"""The same training, step by step: results, losses, weights, optimizers' memories."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integrations.sides import LOSS, WEIGHTS, Sides, batches, mlp, momenta, steps


def one_hot_loss(lib: Any, outputs: str = "loss", y: str = "y", **settings: Any) -> Any:
    """A loss that both packages compute by the same calls, so that results are equal to the bit."""
    settings.setdefault("mode", "!infer")
    return lib.op.tensorop.loss.CrossEntropy(
        (y, "onehot"), outputs, from_logits=True, form="categorical", **settings
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        "adadelta",
        "adagrad",
        "adam",
        "adamax",
        "rmsprop",
        "sgd",
        lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_one_model(sides: Sides, optimizer: Any) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, optimizer, model_name="mlp")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        results = steps(network, batches(12))
        return results, model, momenta(model)

    sides.agree(program)


@pytest.mark.parametrize("truth", ["label", "target"])
def test_fused_losses_round_differently(sides: Sides, truth: str) -> None:
    """Sparse cross entropy and squared error: one call in fastnet, several in FastEstimator."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        losses = lib.op.tensorop.loss
        loss = (
            losses.CrossEntropy(("y", "label"), "loss", from_logits=True)
            if truth == "label"
            else losses.MeanSquaredError(("y", "target"), "loss")
        )
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                loss,
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        first = steps(network, batches(1))[0]["loss"]
        return first, [result["loss"] for result in steps(network, batches(30))], model

    (first, losses, model), (fn_first, fn_losses, fn_model) = sides.run(program)
    torch.testing.assert_close(fn_first, first, rtol=LOSS, atol=0)
    torch.testing.assert_close(fn_losses, losses, rtol=WEIGHTS, atol=LOSS)
    torch.testing.assert_close(
        dict(fn_model.state_dict()), dict(model.state_dict()), rtol=WEIGHTS, atol=LOSS
    )


def noisy() -> torch.nn.Module:
    """A network that acts differently in training and out of it, and that draws numbers."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 3)
    )


@pytest.mark.parametrize("trainable", [True, False])
def test_modes(sides: Sides, trainable: bool) -> None:
    """Layers train in "train" only, and only if the op is trainable; losses stay out of "infer"."""

    def program(lib: Any) -> Any:
        model = lib.build(noisy, "adam", model_name="noisy")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y", trainable=trainable),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        told = []
        for epoch in (1, 2):
            for mode in ("train", "eval", "test", "infer"):
                told.append(steps(network, batches(3, seed=epoch), mode, epoch))
                told.append({name: value.clone() for name, value in model.state_dict().items()})
                told.append([module.training for module in model.modules()])
        return told

    sides.agree(program)


def test_warmup_changes_no_weight(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        warm = steps(network, batches(3), warmup=True)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        return warm, before, steps(network, batches(3)), model

    sides.agree(program)


def test_results_are_free_of_the_graph(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        network = lib.Network(
            [
                lib.op.tensorop.LambdaOp(lambda x: {"in": [x, (x, 1)]}, "x", "nest"),
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: {"deep": [y, (y,)]}, "y", "deep"),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        (result,) = steps(network, batches(1))
        return (
            [result["y"].requires_grad, result["loss"].requires_grad],
            [result["deep"]["deep"][0].requires_grad, result["deep"]["deep"][1][0].requires_grad],
            result,
        )

    sides.agree(program)


def test_two_models_in_a_chain(sides: Sides) -> None:
    """Each has a loss of its own besides one that they share, so that graphs must be kept."""

    def program(lib: Any) -> Any:
        encoder = lib.build(lambda: torch.nn.Linear(6, 4), "adam", model_name="encoder")
        decoder = lib.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="decoder")
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(encoder, "x", "code"),
                models.ModelOp(decoder, "code", "y"),
                one_hot_loss(lib),
                ops.LambdaOp(lambda loss, code: loss + code.square().mean(), ["loss", "code"], "e"),
                models.UpdateOp(encoder, "e"),
                models.UpdateOp(decoder, "loss"),
            ]
        )
        return steps(network, batches(10)), encoder, decoder, momenta(encoder)

    sides.agree(program)


def test_adversaries(sides: Sides) -> None:
    """A generator and a discriminator: each loss runs through both, and both are updated last."""

    def program(lib: Any) -> Any:
        maker, judge = lib.build(
            lambda: [mlp(6, 6), mlp(6, 1)],
            ["adam", lambda params: torch.optim.Adam(params, lr=0.01)],
            model_name=["maker", "judge"],
        )
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        cross_entropy = lib.op.tensorop.loss.CrossEntropy
        network = lib.Network(
            [
                models.ModelOp(maker, "x", "made"),
                models.ModelOp(judge, "made", "verdict"),
                models.ModelOp(judge, "x", "other verdict"),
                ops.LambdaOp(torch.ones_like, "verdict", "yes"),
                ops.LambdaOp(torch.zeros_like, "verdict", "no"),
                cross_entropy(("verdict", "yes"), "maker loss", from_logits=True),
                cross_entropy(("verdict", "no"), "made loss", from_logits=True),
                cross_entropy(("other verdict", "yes"), "found loss", from_logits=True),
                ops.LambdaOp(lambda a, b: a + b, ["made loss", "found loss"], "judge loss"),
                models.UpdateOp(maker, "maker loss"),
                models.UpdateOp(judge, "judge loss"),
            ]
        )
        return steps(network, batches(10)), maker, judge, momenta(maker), momenta(judge)

    sides.agree(program)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_updates_put_off(sides: Sides, first: bool, second: bool) -> None:
    """An update in the middle, and a later op that reads the model: deferred, it sees old weights.

    The second update of the same model takes the first one's gradients along.
    """

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss", defer=first),
                models.ModelOp(model, "x", "y again"),
                one_hot_loss(lib, "loss again", "y again"),
                models.UpdateOp(model, "loss again", defer=second),
                ops.LambdaOp(lambda y, z: (y - z).abs().sum(), ["y", "y again"], "difference"),
            ]
        )
        return steps(network, batches(6)), model, momenta(model)

    sides.agree(program)


def test_an_update_in_the_middle_that_spoils_a_graph(sides: Sides) -> None:
    """Not deferred, it changes weights that another model's gradients need: both say so."""

    def program(lib: Any) -> Any:
        front = lib.build(lambda: torch.nn.Linear(6, 4), "sgd", model_name="front")
        back = lib.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="back")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(front, "x", "code"),
                models.ModelOp(back, "code", "y"),
                one_hot_loss(lib),
                models.UpdateOp(back, "loss"),
                lib.op.tensorop.TensorOp("y", "y"),
                models.UpdateOp(front, "loss"),
            ]
        )
        with pytest.raises(RuntimeError, match="front") as caught:
            steps(network, batches(1))
        return "defer=True" in str(caught.value)

    assert sides.agree(program) is True


@pytest.mark.parametrize("merge", [1, 2, 3])
def test_gradients_added_up(sides: Sides, merge: int) -> None:
    """The count of steps goes on from one epoch, and from one mode, to the next."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss", merge_grad=merge),
            ]
        )
        told: list[Any] = []
        for epoch in (1, 2, 3):
            told.append(steps(network, batches(4, seed=epoch), epoch=epoch))
            told.append(steps(network, batches(1), "eval", epoch))
            told.append({name: value.clone() for name, value in model.state_dict().items()})
        return told, momenta(model)

    sides.agree(program)


def test_gradients_added_up_of_models_that_differ(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        front, back = lib.build(
            lambda: [torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)],
            ["adam", "sgd"],
            model_name=["front", "back"],
        )
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(front, "x", "code"),
                models.ModelOp(back, "code", "y"),
                one_hot_loss(lib),
                models.UpdateOp(back, "loss", merge_grad=3),
                models.UpdateOp(front, "loss"),
            ]
        )
        return steps(network, batches(8)), front, back

    sides.agree(program)


def test_gradients_that_an_op_has_made(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")

        def clipped(loss: torch.Tensor) -> list[torch.Tensor]:
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            return [gradient.clamp(-0.01, 0.01) for gradient in gradients]

        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(clipped, "loss", "gradients"),
                models.UpdateOp(model, "loss", gradients="gradients"),
            ]
        )
        results = steps(network, batches(5), wanted={"loss"})
        return results, model, network.get_loss_keys()

    sides.agree(program)


def test_gradients_that_an_op_has_made_added_up(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(
                    lambda loss: list(torch.autograd.grad(loss, list(model.parameters()))),
                    "loss",
                    "gradients",
                ),
                models.UpdateOp(model, "loss", gradients="gradients", merge_grad=2),
            ]
        )
        return steps(network, batches(5)), model

    sides.agree(program)


def test_a_loss_with_elements_counts_by_its_mean(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                one_hot_loss(lib, average_loss=False),
                lib.op.tensorop.LambdaOp(lambda y: y.square(), "y", "squares"),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
                lib.op.tensorop.model.UpdateOp(model, "squares"),
            ]
        )
        return steps(network, batches(6)), model

    sides.agree(program, rtol=LOSS)


def test_several_losses_of_one_model(sides: Sides) -> None:
    """Trailing updates of one model: gradients add up, and one optimizer's step is taken."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(lambda y: y.square().mean(), "y", "size"),
                models.UpdateOp(model, "loss"),
                models.UpdateOp(model, "size"),
            ]
        )
        return steps(network, batches(6)), model, momenta(model), sorted(model.loss_name)

    sides.agree(program)


class Shared(torch.nn.Module):
    """Several inputs, several outputs, and a part that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.left = torch.nn.Linear(6, 3)
        self.right = torch.nn.Linear(3, 3)
        self.idle = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(x) + self.right(z), self.left(x) * self.right(z)


class Listing(torch.nn.Module):
    """One argument, which is a list where the op has several inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(9, 3)

    def forward(self, data: list[torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat(data, dim=1))


def test_several_inputs_and_outputs(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(Shared, "adam", model_name="shared")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, ["x", "target"], ["y", "z"]),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(5)), model

    sides.agree(program)


def test_a_list_of_inputs(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(Listing, "adam", model_name="listing")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, ["x", "target"], "y"),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(5)), model

    sides.agree(program)


@pytest.mark.parametrize("layers", ["0", 1, -1, ["0", 2], ["2", "0", 3]])
def test_intermediate_layers(sides: Sides, layers: Any) -> None:
    count = len(layers) if isinstance(layers, list) else 1
    keys = ["y", *(f"layer {number}" for number in range(count))]

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", keys, intermediate_layers=layers),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(
                    lambda loss, inner: loss + 0.1 * inner.square().mean(),
                    ["loss", keys[1]],
                    "total",
                    mode="!infer",
                ),
                models.UpdateOp(model, "total"),
            ]
        )
        trained = steps(network, batches(4))
        return trained, steps(network, batches(2), "eval"), steps(network, batches(2), "infer")

    sides.agree(program)


def test_a_model_without_gradients(sides: Sides) -> None:
    """The teacher's pass is outside every graph; the student learns from it."""

    def program(lib: Any) -> Any:
        teacher, student = lib.build(
            lambda: [noisy(), mlp()], [None, "adam"], model_name=["teacher", "student"]
        )
        models = lib.op.tensorop.model
        flags: list[Any] = []
        network = lib.Network(
            [
                models.ModelOp(teacher, "x", "truth", trainable=False, gradients=False),
                models.ModelOp(student, "x", "y"),
                lib.op.tensorop.LambdaOp(
                    lambda truth, y: flags.append((truth.requires_grad, y.requires_grad)),
                    ["truth", "y"],
                ),
                lib.op.tensorop.LambdaOp(
                    lambda y, truth: (y - truth).square().mean(), ["y", "truth"], "loss"
                ),
                models.UpdateOp(student, "loss"),
            ]
        )
        results = steps(network, batches(5)), steps(network, batches(2), "eval")
        return flags, results, teacher, student, teacher.current_optimizer

    sides.agree(program)


def test_parameters_that_are_frozen(sides: Sides) -> None:
    """Before the first epoch, and then others in a later one."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        model[0].requires_grad_(False)
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss"),
            ]
        )
        told: list[Any] = [steps(network, batches(3)), model[0].weight.clone()]
        model[0].requires_grad_(True)
        model[2].requires_grad_(False)
        return told, steps(network, batches(3), epoch=2), model

    sides.agree(program)


def test_an_op_that_writes_into_its_input(sides: Sides) -> None:
    """A torch op may; both packages let it, and the caller's batch shows it in both."""

    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x.mul_(2), "x", "doubled")]
        )
        data = batches(1)
        return steps(network, data, "infer"), data

    sides.agree(program)


def test_a_dataset_of_its_own(sides: Sides) -> None:
    """Ops for one dataset only: its loss is another, and only it trains the second model."""

    def program(lib: Any) -> Any:
        front, back = lib.build(
            lambda: [mlp(), mlp()], ["adam", "adam"], model_name=["front", "back"]
        )
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(front, "x", "y"),
                models.ModelOp(back, "x", "y", ds_id="second"),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(lambda loss: loss * 2, "loss", "loss", ds_id="!second"),
                models.UpdateOp(front, "loss", ds_id="!second"),
                models.UpdateOp(back, "loss", ds_id="second"),
            ]
        )
        told = []
        for epoch in (1, 2):
            for ds_id in ("", "first", "second"):
                told.append(steps(network, batches(2, seed=epoch), epoch=epoch, ds_id=ds_id))
        return told, front, back

    sides.agree(program)


def test_what_a_model_was_fed(sides: Sides) -> None:
    """`fe_input_spec`, from which FastEstimator's traces make a dummy input."""

    def program(lib: Any) -> Any:
        model, other = lib.build(
            lambda: [mlp(), Listing()], [None, None], model_name=["mlp", "listing"]
        )
        models = lib.op.tensorop.model
        network = lib.Network(
            [models.ModelOp(model, "x", "y"), models.ModelOp(other, ["x", "target"], "z")]
        )
        steps(network, batches(1), "infer")
        return [each.fe_input_spec.get_dummy_input() for each in (model, other)]

    sides.agree(program)
