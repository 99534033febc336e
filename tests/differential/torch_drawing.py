"""Random programs for torch."""

from __future__ import annotations

from typing import Any

from tests.differential.programs import (
    Action,
    Change,
    Close,
    Drawing,
    Model,
    Op,
    Open,
    Optimizer,
    Program,
    Step,
)

_PLAIN = ("linear", "mlp", "norm", "conv", "dropout")
_SPARSE = ("bag", "bag and linear")
_UNARY = ("halve", "shift", "tanh", "center", "no less than 0.1", "branch on size")

# Numbers that torch draws, which a compiled step draws as well, and others.
_RANDOM = ("dropout", "torch noise", "numpy noise", "numpy factor", "python noise")

# beyond the end of any list of ops, where an op that is inserted becomes the last one
LAST = 1000


def draw(seed: int, compiled: bool = False) -> Program:
    """Draw a program; the same one for the same seed."""
    return _Drawing(seed, compiled).program()


class _Drawing(Drawing):
    def __init__(self, seed: int, compiled: bool) -> None:
        super().__init__(seed)
        self.compiled = compiled
        # names of models that updates are of
        self.updated: list[str] = []

    def program(self) -> Program:
        self.mixed = self.chance(0.12)
        # Not in mixed precision: a bag of words is not among what autocast supports.
        kinds = ["single", "single", "chain", "chain", "heads", "pair", "trunk"]
        kinds += ["words"] * (not self.mixed)
        getattr(self, f"_{self.random.choice(kinds)}")()
        if self.chance(0.3):
            like = self.random.choice(self.updated)
            # its width is that model's, so that it can stand in for it
            self.models["spare"] = self.model(*self.models[like].width)
            self.spares = like
        else:
            self.spares = ""
        for number in range(self.random.choice([0, 1, 1])):
            self._put_in_trip(number)
        compile = None
        if self.compiled:
            compile = {"verify": self.pick("first", None), "dynamic": self.pick(None, False)}
        actions = tuple(self._actions(compile))
        return Program(self.seed, self.models, tuple(self.ops), actions, self.mixed, compile)

    # ------------------------------------------------------------------ small choices

    def optimizer(self, model: str = "") -> Optimizer:
        """Draw an optimizer; for sparse gradients one that supports them."""
        if model == "bag":
            return Optimizer(self.pick("SparseAdam", "Adagrad", "SGD"), self.pick(0.1, 0.03))
        if model == "bag and linear":
            momentum = self.pick({}, {}, {"momentum": 0.9})
            return self.pick(Optimizer("Adagrad", 0.1), Optimizer("SGD", 0.1, momentum))
        kind = self.pick("SGD", "SGD", "Adam", "Adam", "AdamW", "RMSprop", "Adagrad")
        arguments: dict[str, Any] = {}
        if kind == "SGD" and self.chance(0.5):
            arguments["momentum"] = 0.9
            arguments["nesterov"] = self.chance(0.3)
        elif kind in ("Adam", "AdamW") and self.chance(0.3):
            arguments[self.pick("amsgrad", "maximize")] = True
        if kind != "AdamW" and self.chance(0.2):
            arguments["weight_decay"] = 0.01
        return Optimizer(kind, self.pick(0.1, 0.03, 0.01), arguments)

    def model(self, first: int, last: int, kinds: tuple[str, ...] = _PLAIN) -> Model:
        kind = self.random.choice(kinds)
        optimizers = {1: self.optimizer(kind)}
        if self.chance(0.2):
            optimizers[self.pick(2, 3)] = self.optimizer(kind)
        return Model(kind, (first, last), optimizers)

    # ------------------------------------------------------------------ parts of graphs

    def run(self, model: str, reads: str, writes: str) -> None:
        trainable = self.chance(0.9)
        layer = None
        kind = self.models[model].kind
        keys: tuple[str, ...] = (writes,)
        if self.chance(0.12) and kind in ("mlp", "norm"):
            layer, keys = "0", (writes, f"inside {len(self.ops)}")
        settings = {"model": model, "trainable": trainable, "gradients": True, "layer": layer}
        self.add("model", reads, keys, **settings)

    def maybe_change(self, key: str) -> None:
        """Put ops in that read a key and write it again, or others."""
        for _ in range(self.pick(0, 0, 0, 1, 1, 2)):
            kind = self.pick("lambda", "lambda", "affine", "split")
            ds_id = self.pick(None, None, None, "other", "!other")
            turns = self.pick((), (), (), (True, False), (False, True, True))
            rest: dict[str, Any] = {"ds_id": ds_id, "turns": turns}
            if kind == "lambda":
                self.add(kind, key, key, fn=self._function(), **rest)
            elif kind == "affine":
                self.add(kind, key, key, factor=self.pick(0.5, 2.0), **rest)
            else:
                self.add(kind, key, (key, f"other {len(self.ops)}"), **rest)

    def _function(self) -> str:
        return self.pick(*_RANDOM) if self.chance(0.15) else self.pick(*_UNARY)

    def loss(self, reads: str, writes: str) -> None:
        """Compare three columns with the truth."""
        settings: dict[str, Any] = {"average_loss": self.chance(0.75)}
        if self.chance(0.3):
            self.add("squared error", (reads, "target"), writes, mode="!infer", **settings)
            return
        settings["form"] = self.pick("sparse", "categorical", "binary")
        settings["class_weights"] = self.pick(None, None, {1: 3.0}, {0: 0.5, 1: 2.0})
        truth = "t" if settings["form"] == "sparse" else "onehot"
        self.add("cross entropy", (reads, truth), writes, mode="!infer", **settings)

    def update(self, model: str, loss: str, may_give: bool = False) -> None:
        merge = self.pick(1, 1, 1, 1, 2, 3)
        given = may_give and not self.mixed and self.chance(0.15)
        reads = loss
        turns = self.pick((), (), (), (), (True, False), (True, True, False))
        if given:
            reads = f"gradients {len(self.ops)}"
            self.add("gradient", loss, reads, mode="train", model=model)
        defer = self.chance(0.1)
        weight = "weight" if self.chance(0.15) else None
        skips = self.chance(0.1)
        if skips and not given:
            self.add("lambda", loss, loss, mode="train", fn="infinite at times")
        settings = {"model": model, "merge_grad": merge, "defer": defer, "given": given}
        settings |= {"weight": weight, "skip_nonfinite": skips}
        self.add("update", reads, (), mode="train", turns=turns, **settings)
        self.updated.append(model)
        if self.chance(0.2):
            self.add("lambda", "y", "y", fn="halve")

    # ------------------------------------------------------------------ graphs

    def _single(self) -> None:
        self.models["net"] = self.model(6, 3)
        self.maybe_change("x")
        self.run("net", "x", "y")
        if self.chance(0.25):
            self.add("extra", "y", "y", model="net")
        self.maybe_change("y")
        self.loss("y", "loss")
        self.update("net", "loss", may_give=True)

    def _chain(self) -> None:
        self.models["front"] = self.model(6, 4)
        self.models["back"] = self.model(4, 3)
        self.maybe_change("x")
        self.run("front", "x", "code")
        self.maybe_change("code")
        self.run("back", "code", "y")
        self.maybe_change("y")
        self.loss("y", "loss")
        if self.chance(0.3):
            self.loss("y", "second")
            self.add("lambda", ("loss", "second"), "loss", mode="!infer", fn="sum")
        names = self.pick(("front", "back"), ("back", "front"), ("front",), ("back",))
        for name in names:
            self.update(name, "loss", may_give=len(names) == 1)

    def _heads(self) -> None:
        self.models["base"] = self.model(6, 4)
        self.models["head a"] = self.model(4, 3)
        self.models["head b"] = self.model(4, 3)
        self.run("base", "x", "code")
        self.run("head a", "code", "y")
        self.run("head b", "code", "y b")
        self.loss("y", "loss a")
        self.loss("y b", "loss b")
        self.add("lambda", ("loss a", "loss b"), "loss", mode="!infer", fn="sum")
        for name, loss in (("head a", "loss a"), ("head b", "loss b"), ("base", "loss")):
            self.update(name, loss)

    def _pair(self) -> None:
        self.models["maker"] = self.model(4, 6)
        self.models["judge"] = self.model(6, 1)
        self.run("maker", "z", "fake")
        self.run("judge", "fake", "y")
        self.run("judge", "x", "y real")
        for reads, writes, fn in (
            ("y", "maker loss", "against ones"),
            ("y", "fake loss", "against zeros"),
            ("y real", "real loss", "against ones"),
        ):
            self.add("lambda", reads, writes, mode="!infer", fn=fn)
        self.add("lambda", ("fake loss", "real loss"), "judge loss", mode="!infer", fn="sum")
        updates = [("maker", "maker loss"), ("judge", "judge loss")]
        self.random.shuffle(updates)
        for update in updates:
            self.update(*update)

    def _trunk(self) -> None:
        for name in ("left", "right"):
            model = self.model(6, 3, ("mlp",))
            self.models[name] = Model("mlp", (6, 3), model.optimizers, trunk=True)
        self.run("left", "x", "y")
        self.run("right", "x", "y right")
        self.loss("y", "loss left")
        self.loss("y right", "loss right")
        self.update("left", "loss left")
        self.update("right", "loss right")

    def _words(self) -> None:
        """A model of words, whose gradients are sparse, alone or before another one."""
        if self.chance(0.5):
            self.models["words"] = self.model(12, 3, _SPARSE)
            self.run("words", "words", "y")
            names: tuple[str, ...] = ("words",)
        else:
            self.models["words"] = self.model(12, 4, _SPARSE)
            self.models["back"] = self.model(4, 3)
            self.run("words", "words", "code")
            self.maybe_change("code")
            self.run("back", "code", "y")
            names = self.pick(("words", "back"), ("back", "words"), ("words",))
        self.maybe_change("y")
        self.loss("y", "loss")
        for name in names:
            self.update(name, "loss")

    def _put_in_trip(self, number: int) -> None:
        self.ops.insert(
            self.random.randrange(len(self.ops) + 1),
            Op(f"trip {number}", "trip", ("x",), ("x",)),
        )

    # ------------------------------------------------------------------ what happens

    def _actions(self, compile: dict[str, Any] | None) -> list[Action]:
        actions: list[Action] = []
        # A key that is not wanted may be left out, together with the numbers that it takes.
        draws = any(op.settings.get("fn") in _RANDOM for op in self.ops)
        draws = draws or any(model.kind == "dropout" for model in self.models.values())
        for _ in range(self.pick(1, 2, 2, 3, 4)):
            for _ in range(self.pick(0, 0, 1, 1, 2)):
                actions.append(self._op_change() if self.chance(0.45) else self._model_change())
            mode = self.pick("train", "train", "train", "train", "eval", "infer", "test")
            wanted = self.pick((), (), (), ("y",), ("y", "x"))
            wanted = () if draws else wanted
            epoch = self.pick(1, 1, 2, 3, 4)
            ds_id = self.pick("", "", "", "other")
            warmup = self.chance(0.04)
            around = "autocast" if self.chance(0.04) else None
            actions.append(Open(mode, epoch, ds_id, wanted, warmup, around))
            for _ in range(self.pick(1, 2, 2, 3, 4)):
                if self.chance(0.45):
                    actions.append(self._model_change())
                actions.append(self._step(mode, compile))
            actions.append(Close())
        return actions

    def _step(self, mode: str, compile: dict[str, Any] | None) -> Step:
        around = None
        if self.chance(0.1):
            choices = ["autocast", "enable_grad", "no_grad"]
            choices += ["inference_mode"] * (mode != "train")
            around = self.random.choice(choices)
        fails = None
        if any(op.kind == "trip" for op in self.ops) and self.chance(0.2):
            fails = self.pick("error", "interrupt", *["in trace"] * self.compiled)
        elif compile is not None and compile["verify"] is None and self.chance(0.1):
            # Without a verification, which would have run the step eagerly before.
            fails = "in program"
        return Step(self.pick(2, 3, 4, 6, 8), self.random.randrange(1000), around, fails)

    def _model_change(self) -> Change:
        name = self.random.choice([*self.updated, *self.models])
        seed = self.random.randrange(1000)
        joins = self.chance(0.75)
        place = self.random.randrange(8)
        factor = self.pick(0.5, 2.0, -1.0)
        values: dict[str, Any] = {
            "learning rate": self.pick(0.0, 0.02, 0.2),
            "settings of groups": self.pick(
                {"momentum": 0.5, "betas": (0.5, 0.9), "alpha": 0.5},
                {"weight_decay": 0.1},
                {"maximize": True},
                {"eps": 1e-3, "nesterov": False},
            ),
            "requires_grad": (place, self.chance(0.4)),
            "layer replaced": (place, seed, joins),
            "layer added": (seed, joins),
            "forward hook": factor,
            "forward pre-hook": factor,
            "gradient hook": (place, factor),
            "post-accumulate hook": (place, factor),
            "backward hook": factor,
            "raising hook": place,
            "step hook": factor,
            "hooks removed": None,
            "load_state_dict": seed,
            "optimizer's load_state_dict": 0.05,
            "another optimizer": self.optimizer(self.models[name].kind),
            "layer.eval": place,
            "zero_grad patched": None,
            "step patched": self.pick(0.1, 1.0),
            "extra parameter in the optimizer": None,
            "stray gradients": 0.1,
        }
        for kind in self._left_out(name):
            values.pop(kind, None)
        kind = self.random.choice(list(values))
        return Change(kind, name, values[kind])

    def _left_out(self, name: str) -> list[str]:
        """List the changes of a model that mean nothing here, or what nobody promises."""
        left_out: list[str] = []
        if any(op.kind == "trip" for op in self.ops) or len(set(self.updated)) > 1:
            # whose they are, once a step has failed
            left_out += ["stray gradients"]
        if len(self.models) > 1:
            # it would be called in some model's backward pass that need not reach it
            left_out += ["raising hook"]
            # it hides what is behind it, so that all of the graph is walked; if an earlier update
            # has overwritten some of that, an error says to defer it
            left_out += ["backward hook"]
        if self.models[name].trunk:
            left_out += ["layer replaced"]
        if any(op.settings.get("layer") for op in self.ops if op.settings.get("model") == name):
            # the layer whose output is asked for is the one that was there when the op was made;
            # an error says so
            left_out += ["layer replaced"]
        return left_out

    def _op_change(self) -> Change:
        op = self.random.choice(self.ops)
        choices: list[tuple[str, Any]] = []
        average = ("average_loss", self.chance(0.5))
        if op.kind == "model":
            choices = [("trainable", self.chance(0.5))] * 2
            if self.spares and self.models[self.spares].width == self.models["spare"].width:
                choices += [("model", "spare")] * 2 * (op.settings["model"] == self.spares)
        elif op.kind == "cross entropy":
            last = 1 if op.settings["form"] == "binary" else 2
            choices = [average, ("class_weights", self.pick(None, {0: 5.0}, {last: 0.1}))]
            if op.settings["class_weights"]:
                choices += [("class_weights[1]", 100.0)]
        elif op.kind == "squared error":
            choices = [average]
        elif op.kind == "lambda" and op.settings["fn"] in (*_UNARY, *_RANDOM):
            choices = [("fn", self._function()), ("patched", self.pick("tripled", "negated"))]
        elif op.kind == "affine":
            choices = [("factor", 3.0), ("patched", self.pick("tripled", "negated"))]
        elif op.kind == "update":
            choices = [("merge_grad", self.pick(1, 2)), ("defer", self.chance(0.5))]
        if not choices:
            key = self.pick("x", "y")
            # in front of all that reads it, or behind all that writes it
            place = 0 if key == "x" else LAST
            return Change("op inserted", key, (place, self.pick("halve", "shift")))
        return Change("op's attribute", op.name, self.random.choice(choices))
