"""Torch programs run by a plain loop, in which there is nothing of fastnet.

What it does in a step is what a program without fastnet would spell out: models are called, losses
are those of torch.nn.functional, then come backward, the optimizer's step and zero_grad.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from tests.differential.programs import Op, Open, Program
from tests.differential.torch_side import FUNCTIONS, PATCHES, Side, Tensors

_TAKERS = ("update", "gradient")

# PyTorch advises to differentiate and update without autocast.
_without_autocast = torch.autocast("cpu", enabled=False)


class ByHand(Side):
    """A program, run by hand."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._optimizers: dict[str, dict[int, torch.optim.Optimizer]] = {
            name: {begin: self.make(name, spec) for begin, spec in model.optimizers.items()}
            for name, model in program.models.items()
        }
        self._current = {name: each[1] for name, each in self._optimizers.items()}
        self._ops = [_settings_of(op) for op in program.ops]
        # how often gradients were added up, their sums, and that of weights, by the op's name
        self._merged: dict[str, tuple[int, dict[Any, torch.Tensor], Any]] = {}

    def optimizer(self, name: str) -> torch.optim.Optimizer:
        return self._current[name]

    def put_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers[name] = {1: optimizer}
        self._current[name] = optimizer

    def change_op(self, name: str, attribute: str, value: Any) -> None:
        (op,) = [op for op in self._ops if op.name == name]
        if attribute == "class_weights[1]":
            op.class_weights = {**op.class_weights, 1: value}
        else:
            setattr(op, attribute, value)

    def insert_op(self, place: int, function: str, key: str) -> None:
        op = Op(f"inserted {len(self._ops)}", "lambda", (key,), (key,), {"fn": function})
        self._ops.insert(place, _settings_of(op))

    def open(self, action: Open) -> None:
        self._context = action
        self._active = [op for op in self._ops if _runs(op, action)]
        for op in self._active:
            name = getattr(op, "model", None)
            if name is not None and op.kind != "extra":
                begun = [epoch for epoch in self._optimizers[name] if epoch <= action.epoch]
                self._current[name] = self._optimizers[name][max(begun)]
                if action.mode == "train" and not action.warmup:
                    for group in self._current[name].param_groups:
                        for parameter in group["params"]:
                            parameter.grad = None
        self._takes = any(op.kind in _TAKERS for op in self._active)
        self._updated = {op.model for op in self._active if op.kind == "update"}
        self._first_deferred = len(self._active)
        while self._first_deferred and self._active[self._first_deferred - 1].kind == "update":
            self._first_deferred -= 1

    def close(self) -> None:
        del self._context

    def step(self, batch: Tensors) -> Tensors:
        self._values = dict(batch)
        self._written: set[str] = set()
        # what a step merges and puts off counts at its end, if nothing fails before that
        self._merging = dict(self._merged)
        self._deferred: dict[str, Callable[[], None]] = {}
        try:
            with ExitStack() as stack:
                if self.program.mixed:
                    stack.enter_context(torch.autocast("cpu"))
                if not self._takes:
                    stack.enter_context(torch.no_grad())
                for place, op in enumerate(self._active):
                    self._run(op, place)
                for put_off in self._deferred.values():
                    put_off()
        except BaseException:
            for name in self._updated:
                for parameter in self._owned(name, frozen=True):
                    parameter.grad = None
                self._current[name].zero_grad()
            raise
        self._merged = self._merging
        wanted = self._written & set(self._context.wanted or self._written)
        return {**batch, **{key: _detached(self._values[key]) for key in wanted}}

    def _run(self, op: Any, place: int) -> None:
        data = [self._values[key] for key in op.reads]
        if op.kind == "update":
            if not self._context.warmup:
                self._update(op, data[0], place >= self._first_deferred or op.defer)
            return
        if op.patched is not None:
            results = [PATCHES[op.patched](data, None)]
        else:
            results = _RUNS[op.kind](self, op, *data)
        for key, value in zip(op.writes, results, strict=True):
            self._values[key] = value
            self._written.add(key)

    # ------------------------------------------------------------------ models and updates

    def call(self, op: Any, x: Any) -> list[Any]:
        module = self.modules[op.model]
        module.train(op.trainable and self._context.mode == "train")
        if op.layer is None:
            return [self._call(op, module, x)]
        inner: list[Any] = []
        layer = module.get_submodule(op.layer)
        hook = layer.register_forward_hook(lambda _, x, y: inner.append(y), prepend=True)
        try:
            return [self._call(op, module, x), *inner]
        finally:
            hook.remove()

    def _call(self, op: Any, module: Any, x: Any) -> Any:
        if op.gradients:
            return module(x)
        with torch.no_grad():
            return module(x)

    def _owned(self, name: str, frozen: bool = False) -> list[Any]:
        """List what a model's update trains: its parameters, and all others of its optimizer."""
        found = {id(one): one for one in self.modules[name].parameters()}
        for group in self._current[name].param_groups:
            found.update((id(one), one) for one in group["params"])
        return [one for one in found.values() if frozen or one.requires_grad]

    def _update(self, op: Any, data: Any, deferred: bool) -> None:
        optimizer = self._current[op.model]
        # If `merge_grad` was lowered, the next update takes what was merged before.
        merges = op.merge_grad > 1 or self._merging.get(op.name, (0, {}, 0))[0] > 0
        merges = merges or op.weight is not None
        if op.given:
            trained = [p for p in self.modules[op.model].parameters() if p.requires_grad]
            gradients = list(zip(trained, data, strict=True))
            ready = self._add_up(op, gradients) if merges else gradients
        else:
            loss = data.mean() if data.dim() else data
            if merges:
                ready = self._add_up(op, self._apart(op.model, loss))
            else:
                self._backward(op.model, loss)
                ready = []
        if ready is None:
            return
        # weights of 0 make no update
        skips = merges and op.weight is not None and self._divisor == 0
        for parameter, gradient in ready:
            if gradient is not None:
                before = parameter.grad
                gradient = gradient.detach().clone()
                parameter.grad = gradient if before is None else before + gradient

        @_without_autocast
        def step() -> None:
            if not (skips or (op.skip_nonfinite and _is_infinite(optimizer))):
                optimizer.step()
            # the sums are used up, even if another step fails later
            self._merged.pop(op.name, None)
            optimizer.zero_grad()

        if deferred:
            self._deferred[op.model] = step
            return
        step()
        self._deferred.pop(op.model, None)

    def _apart(self, name: str, loss: Any) -> list[tuple[Any, Any]]:
        """Take gradients apart from those that an update which waits has left."""
        owned = self._owned(name)
        aside = [parameter.grad for parameter in owned]
        for parameter in owned:
            parameter.grad = None
        self._backward(name, loss)
        gradients = [(parameter, parameter.grad) for parameter in owned]
        for parameter, before in zip(owned, aside, strict=True):
            parameter.grad = before
        return gradients

    def _add_up(self, op: Any, gradients: list[tuple[Any, Any]]) -> list[tuple[Any, Any]] | None:
        """Add gradients to those of earlier steps, and give the means once there are enough."""
        times, sums, divisor = self._merging.get(op.name, (0, {}, 0))
        sums, weight = dict(sums), 1
        if op.weight is not None:
            weight = self._values[op.weight]
        for parameter, gradient in gradients:
            if gradient is not None:
                gradient = gradient.detach().clone()
                if op.weight is not None:
                    gradient = gradient.coalesce() if gradient.is_sparse else gradient
                    gradient = gradient * weight if weight != 0 else torch.zeros_like(gradient)
                sums[parameter] = sums[parameter] + gradient if parameter in sums else gradient
        divisor = divisor + weight
        if times + 1 < op.merge_grad:
            self._merging[op.name] = (times + 1, sums, divisor)
            return None
        self._merging[op.name] = (0, {}, 0)
        self._divisor = divisor
        # what was added up counts, also where it is frozen by now
        known = [one for one in self._owned(op.model, frozen=True) if one in sums]
        return [(one, (sums[one] / (divisor if divisor != 0 else 1)).to(one)) for one in known]

    @_without_autocast
    def _backward(self, name: str, loss: Any) -> None:
        others = {op.model for op in self._ops if op.kind in ("model", "update")} - {name}
        if not others:
            loss.backward(retain_graph=True)
            return
        # this update is not to leave gradients on models that are trained beside
        theirs = {id(one) for other in others for one in self._owned(other)}
        free = [one for one in self.extras.values() if id(one) not in theirs]
        inputs = {id(one): one for one in [*self._owned(name), *free]}
        loss.backward(inputs=list(inputs.values()), retain_graph=True)

    @_without_autocast
    def gradients(self, op: Any, loss: Any) -> list[Any]:
        trained = [p for p in self.modules[op.model].parameters() if p.requires_grad]
        ones = torch.ones_like(loss)
        return [torch.autograd.grad(loss, trained, ones, retain_graph=True, allow_unused=True)]


def _is_infinite(optimizer: torch.optim.Optimizer) -> bool:
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    gradients = [one.grad for one in parameters if one.grad is not None]
    return not all(
        one.isfinite().all() for one in (g.to_dense() if g.is_sparse else g for g in gradients)
    )


def _settings_of(op: Op) -> Any:
    return SimpleNamespace(**{**vars(op), "patched": None, **op.settings})


def _runs(op: Any, context: Open) -> bool:
    for asked, actual in ((op.mode, context.mode), (op.ds_id, context.ds_id)):
        if asked is not None and (actual == asked.lstrip("!")) == asked.startswith("!"):
            return False
    return not op.turns or bool(op.turns[(context.epoch - 1) % len(op.turns)])


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return [_detached(one) for one in value] if isinstance(value, (list, tuple)) else value


def _is_half(y: Any) -> bool:
    # the fused function adds halves up in another order than a mean does
    return y.dtype in (torch.float16, torch.bfloat16)


def _cross_entropy(op: Any, y: Any, truth: Any) -> Any:
    weights = {index: (op.class_weights or {}).get(index, 1.0) for index in range(3)}
    row = torch.tensor(list(weights.values()))
    if op.form == "sparse":
        if op.average_loss and not op.class_weights and not _is_half(y):
            return functional.cross_entropy(y, truth)
        losses = functional.cross_entropy(y, truth, reduction="none")
        if op.class_weights:
            losses = losses * row[truth]
    elif op.form == "categorical":
        losses = -(truth.float() * functional.log_softmax(y, 1)).sum(1)
        if op.class_weights:
            losses = losses * row[truth.argmax(1)]
    else:
        losses = functional.binary_cross_entropy_with_logits(y, truth.to(y.dtype), reduction="none")
        if op.class_weights:
            each = torch.where(truth.to(y.dtype) == 1, weights[1], weights[0])
            losses = losses * each.to(y.dtype)
        losses = losses.mean(1)
    return losses.mean() if op.average_loss else losses


def _squared_error(op: Any, y: Any, truth: Any) -> Any:
    if op.average_loss:
        return functional.mse_loss(y, truth)
    return functional.mse_loss(y, truth, reduction="none").mean(-1)


_RUNS: dict[str, Callable[..., list[Any]]] = {
    "model": ByHand.call,
    "gradient": ByHand.gradients,
    "cross entropy": lambda side, op, *data: [_cross_entropy(op, *data)],
    "squared error": lambda side, op, *data: [_squared_error(op, *data)],
    "lambda": lambda side, op, *data: [FUNCTIONS[op.fn](*data)],
    "affine": lambda side, op, x: [x * op.factor + 1],
    "split": lambda side, op, x: [x * 2, x + 1],
    "extra": lambda side, op, x: [x * side.extras[op.model]],
    "trip": lambda side, op, x: [side.tripwire(x)],
}
