"""PyTorch's own functions for what `bench.workloads.dispatch` calls."""

from __future__ import annotations

import torch

from bench.workloads.dispatch import Step

CALLS: dict[str, Step] = {
    "argmax": lambda values: torch.argmax(values[0], dim=1),
    "cast": lambda values: values[0].to(torch.float64),
    "clip_by_value": lambda values: torch.clamp(values[0], 0.0, 1.0),
    "concat": lambda values: torch.cat(values[:2], dim=1),
    "exp": lambda values: torch.exp(values[0]),
    "expand_dims": lambda values: torch.unsqueeze(values[0], dim=1),
    "get_gradient": lambda values: torch.autograd.grad(values[0], values[1], retain_graph=True)[0],
    "matmul": lambda values: torch.matmul(values[0], values[1]),
    "maximum": lambda values: torch.maximum(values[0], values[1]),
    "permute": lambda values: values[0].permute([1, 0]),
    "reduce_max": lambda values: torch.amax(values[0], dim=1),
    "reduce_mean": lambda values: torch.mean(values[0]),
    "reduce_sum": lambda values: torch.sum(values[0], dim=1),
    "reshape": lambda values: torch.reshape(values[0], [2, 8]),
    "squeeze": lambda values: torch.squeeze(values[3], dim=1),
    "where": lambda values: torch.where(values[2], values[0], values[1]),
    "zeros_like": lambda values: torch.zeros_like(values[0]),
}
