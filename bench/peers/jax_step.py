"""The same step in JAX with optax: one jitted function from the batch to the updated weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import torch

from bench.program import Program
from bench.workloads.compiled import Compiled, ElementwiseChain, SeveralSteps, Tokens
from bench.workloads.torch_models import LEARNING_RATE
from bench.workloads.workload import Workload


def make(workload: Workload) -> Program | None:
    """Return the step in JAX, for chains, models of linear layers, and GPTs."""
    match workload:
        case Tokens():
            return _supervised(workload, _predict_words)
        case Compiled(shape=(_, _)):
            return _supervised(workload, _predict)
        case ElementwiseChain():
            return _chain(workload)
    return None


def _arrays(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {key: jax.numpy.asarray(value.numpy()) for key, value in batch.items()}


def _tensors(result: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return a step's results as tensors; JAX has no 64-bit integers by default."""
    made = {key: torch.from_numpy(np.asarray(value).copy()) for key, value in result.items()}
    return {key: one.long() if one.dtype is torch.int32 else one for key, one in made.items()}


def _predict(model: torch.nn.Module, weights: list[Any], x: Any) -> Any:
    """Run a model's layers with JAX arrays as weights."""
    functions = {torch.nn.ReLU: jax.nn.relu, torch.nn.Tanh: jax.numpy.tanh}
    rest = iter(weights)
    for layer in model.children():
        if isinstance(layer, torch.nn.Linear):
            x = x @ next(rest).T + next(rest)
        else:
            x = functions[type(layer)](x)
    return x


def _predict_words(model: torch.nn.Module, weights: list[Any], words: Any) -> Any:
    """Run the GPT of `bench.workloads.compiled` with JAX arrays as weights."""
    jnp = jax.numpy
    named = dict(zip((name for name, _ in model.named_parameters()), weights, strict=True))

    def linear(x: Any, name: str) -> Any:
        return x @ named[f"{name}.weight"].T + named.get(f"{name}.bias", 0.0)

    def norm(x: Any, name: str) -> Any:
        deviations = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(deviations).mean(-1, keepdims=True) + 1e-5)
        return deviations * scale * named[f"{name}.weight"] + named[f"{name}.bias"]

    batch, length = words.shape
    x = named["tokens.weight"][words] + named["positions.weight"][:length]
    for block in (f"blocks.{index}" for index in range(len(model.blocks))):  # type: ignore[arg-type]
        projected = linear(norm(x, f"{block}.norms.0"), f"{block}.project")
        query, key, value = jnp.moveaxis(projected.reshape(batch, length, 3, 4, -1), 2, 0)
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + linear(found.reshape(batch, length, -1), f"{block}.attended")
        hidden = linear(norm(x, f"{block}.norms.1"), f"{block}.mlp.0")
        x = x + linear(jax.nn.gelu(hidden, approximate=False), f"{block}.mlp.2")
    logits = linear(norm(x, "norm"), "head")
    return logits.reshape(batch * length, -1)


def _supervised(workload: Compiled, function: Callable[..., Any]) -> Program:
    model = workload.model()
    predict = partial(function, model)
    kind = optax.adam if workload.adam else optax.sgd
    optimizer = kind(LEARNING_RATE)
    weights = [jax.numpy.asarray(one.detach().numpy().copy()) for one in model.parameters()]
    state = optimizer.init(weights)
    batch = _arrays(workload.batch())

    def losses(weights: list[Any], batch: dict[str, Any]) -> Any:
        pred = predict(weights, batch["x"])
        loss = optax.softmax_cross_entropy_with_integer_labels(pred, batch["y"]).mean()
        return loss, pred

    def update(weights: list[Any], state: Any, batch: dict[str, Any]) -> Any:
        (loss, pred), gradients = jax.value_and_grad(losses, has_aux=True)(weights, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, pred, loss

    train = jax.jit(update, donate_argnums=(0, 1))

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_several(weights: list[Any], state: Any, batches: dict[str, Any]) -> Any:
        def take(carried: Any, batch: dict[str, Any]) -> Any:
            *carried, pred, loss = update(*carried, batch)
            return tuple(carried), (pred, loss)

        (weights, state), results = jax.lax.scan(take, (weights, state), batches)
        return weights, state, *results

    infer = jax.jit(predict)

    def train_step(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal weights, state
        weights, state, pred, loss = train(weights, state, batch)
        return {**batch, "pred": pred, "loss": loss.block_until_ready()}

    def several_steps(batches: dict[str, Any]) -> dict[str, Any]:
        nonlocal weights, state
        weights, state, pred, loss = train_several(weights, state, batches)
        return {**batches, "pred": pred, "loss": loss.block_until_ready()}

    def infer_step(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "pred": infer(weights, batch["x"]).block_until_ready()}

    def result(made: dict[str, Any]) -> dict[str, torch.Tensor]:
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(_tensors({"": weight})[""])
        return _tensors(made)

    if isinstance(workload, SeveralSteps):
        count = workload.per_call
        stacked = {key: jax.numpy.stack([value] * count) for key, value in batch.items()}
        return Program(
            several_steps,
            stacked,
            steps_per_call=count,
            once=lambda _: train_step(batch),
            result=result,
            model=model,
        )
    step = train_step if workload.training else infer_step
    return Program(step, batch, result=result, model=model if workload.training else None)


def _chain(workload: ElementwiseChain) -> Program:
    functions = workload.functions()
    last = workload.keys[-1]

    @jax.jit
    def chain(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, last: chain(batch["k0"]).block_until_ready()}

    return Program(step, _arrays(workload.batch()), result=_tensors)
