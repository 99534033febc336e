"""The settings of a thread that a captured step depends on."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch._internals import modes_are_active, transforms_are_active

__all__ = ["environment"]


def environment(device: str) -> tuple[Any, ...] | None:
    """Return the settings of this thread that decide how torch computes on a kind of device."""
    if (
        modes_are_active()
        or transforms_are_active()
        or torch.is_inference_mode_enabled()
        or torch.is_anomaly_enabled()
    ):
        return None
    autocast = torch.is_autocast_enabled(device)
    found = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_autocast_dtype(device) if autocast else None,
        torch.is_autocast_cache_enabled(),
    )
    return found if device == "cpu" else (*found, *_cuda_environment())


def _cuda_environment() -> tuple[Any, ...]:
    """Return the settings that decide which kernels CUDA runs, fixed when a step is captured."""
    # These modules are untyped, or resolve attributes dynamically.
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    started: Any = torch.cuda.is_initialized
    autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.get_autocast_dtype("cpu") if autocast else None,
        # A device without an index is the current one.
        torch.cuda.current_device() if started() else None,
        cuda.matmul.fp32_precision,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
    )
