"""Random programs for TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.differential.programs import Change, Close, Drawing, Model, Open, Optimizer, Program


@dataclass(frozen=True)
class Step:
    """A step: how many samples of what length, how wide "w" is, and what is no tensor."""

    size: int
    length: int
    width: int
    seed: int
    scale: float
    how: str
    turn: float
    reverse: bool


def draw(seed: int) -> Program:
    """Draw a program; the same one for the same seed."""
    return _Drawing(seed).program()


class _Drawing(Drawing):
    def program(self) -> Program:
        self._graph()
        return Program(self.seed, self.models, tuple(self.ops), tuple(self._actions()))

    def optimizer(self) -> Optimizer:
        kind = self.pick("SGD", "SGD", "Adam", "RMSprop")
        rate, arguments = self.pick(0.1, 0.03), dict[str, Any]()
        if kind != "SGD":
            # with less a rounding of a small gradient is a large part of an update
            arguments["epsilon"] = 0.01
        elif self.chance(0.5):
            arguments["momentum"] = 0.9
        if self.chance(0.2):
            arguments[self.pick("clipnorm", "global_clipnorm", "clipvalue")] = 0.1
        return Optimizer(kind, rate, arguments)

    def model(self, *kinds: str) -> Model:
        return Model(self.random.choice(kinds), (4, 3), {1: self.optimizer()})

    def _graph(self) -> None:
        # all that a step may trace anew for; few of them, so that a program has few traces
        features = self.random.sample(
            ["length", "mean", "scale", "how", "knob", "nest", "width"], 2
        )
        for feature in features:
            if feature == "length":
                self.add("lambda", "x", "x", fn="branch on length")
            elif feature == "mean":
                self.add("lambda", "x", "x", fn="branch on mean")
            elif feature in ("scale", "how", "knob", "nest"):
                self.add("lambda", ("x", feature), "x", fn=f"by {feature}")
        last = self.model("flat", "norm", "conv", "regular")
        self.models["net"] = last
        reads = "x"
        if self.chance(0.3):
            self.models["front"] = self.model("front")
            self.add("model", "x", "code", model="front", trainable=True)
            reads = "code"
        self.add("model", reads, "y", model="net", trainable=self.chance(0.85))
        kind = self.pick("sparse", "categorical", "binary", "squared")
        truth = {"sparse": "t", "squared": "target"}.get(kind, "onehot")
        average = self.chance(0.8)
        self.add(kind, ("y", truth), "loss", mode="!infer", average_loss=average)
        if "width" in features:
            self.add("lambda", ("loss", "w"), "loss", mode="!infer", fn="by width")
        for name in self.models:
            given = self.chance(0.1) and last.kind != "regular"
            key = "loss"
            if given:
                key = f"gradients of {name}"
                self.add("gradient", "loss", key, mode="train", model=name)
            merge = self.pick(1, 1, 1, 2)
            defer = self.chance(0.2)
            weight = "weight" if self.chance(0.15) else None
            skips = self.chance(0.15)
            if skips and not given:
                self.add("lambda", "loss", "loss", mode="train", fn="infinite at times")
            settings = {"model": name, "merge_grad": merge, "defer": defer, "given": given}
            settings |= {"weight": weight, "skip_nonfinite": skips}
            self.add("update", key, (), mode="train", **settings)

    def _actions(self) -> list[Any]:
        actions: list[Any] = []
        lengths = self.random.sample([2, 3, 5], 2)
        widths = self.random.sample([1, 4, 5], 2)
        for number in range(self.pick(2, 2, 3)):
            for _ in range(self.pick(1, 2) if number else 0):
                actions.append(self._change_between())
            mode = self.pick("train", "train", "train", "eval", "infer")
            actions.append(Open(mode, self.pick(1, 2, 3)))
            for _ in range(self.pick(2, 3)):
                if self.chance(0.3):
                    actions.append(self._change_at_once())
                actions.append(
                    Step(
                        size=self.pick(2, 4, 6),
                        length=self.pick(*lengths),
                        width=self.pick(*widths),
                        seed=self.random.randrange(1000),
                        scale=self.pick(0.5, 2.0),
                        how=self.pick("up", "down"),
                        turn=self.pick(1.0, 3.0),
                        reverse=self.chance(0.5),
                    )
                )
            actions.append(Close())
        return actions

    def _change_at_once(self) -> Change:
        name = self.random.choice(list(self.models))
        kind = self.pick("learning rate", "weights")
        values = {"learning rate": self.pick(0.01, 0.2), "weights": self.random.randrange(1000)}
        return Change(kind, name, values[kind])

    def _change_between(self) -> Change:
        if self.chance(0.2):
            return self._change_at_once()
        if self.chance(0.15):
            op = self.random.choice(self.ops)
            if op.kind == "lambda" and len(op.reads) == 1:
                return Change("op", op.name, ("fn", self.pick("halve", "branch on length")))
            if op.kind == "model":
                return Change("op", op.name, ("trainable", self.chance(0.5)))
            if "average_loss" in op.settings:
                return Change("op", op.name, ("average_loss", self.chance(0.5)))
        name = self.random.choice(list(self.models))
        place = self.random.randrange(4)
        values: dict[str, Any] = {
            "layer.trainable": (place, self.chance(0.3)),
            "variable.trainable": (place, self.chance(0.3)),
            "schedule": self.pick(0.5, 0.05),
            "clipnorm": self.pick(0.01, 1.0),
            "clipvalue": 0.01,
            "epsilon": 0.1,
            "momentum": 0.5,
            "optimizer": self.optimizer(),
            "activation": self.pick("relu", "sigmoid"),
            "layer added": self.random.randrange(1000),
            "regularizer": 0.1,
            "BatchNormalization.momentum": 0.5,
        }
        if self.models[name].kind == "regular" or any(op.settings.get("given") for op in self.ops):
            del values["regularizer"]
        kind = self.random.choice(list(values))
        return Change(kind, name, values[kind])
