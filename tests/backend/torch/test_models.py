"""Running models: their mode, and what they were fed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet import backend
from fastnet.backend.torch.models import TrainingSwitch, feed_forward
from tests.network.programs import Image, line


class Counting(nn.Sequential):
    """Counts how often its mode is set."""

    calls: int = 0

    def train(self, mode: bool = True) -> Counting:
        self.calls += 1
        super().train(mode)
        return self


class TestTrainingSwitch:
    def test_a_layer_that_was_replaced_added_or_taken_away(self) -> None:
        model = Counting(nn.Dropout(), nn.Sequential(nn.Dropout()))
        switch = TrainingSwitch(model)
        switch.set(False)
        model[1][0] = nn.Dropout()
        switch.set(False)
        assert not model[1][0].training
        model[1].append(nn.Dropout())
        switch.set(False)
        assert not model[1][1].training
        del model[1][0]
        calls = model.calls
        switch.set(False)
        switch.set(False)
        assert model.calls == calls + 1

    def test_a_model_that_keeps_a_part_in_evaluation(self) -> None:
        class Frozen(Image):
            def train(self, mode: bool = True) -> Frozen:
                super().train(mode)
                self.norm.eval()
                return self

        model = Frozen()
        switch = TrainingSwitch(model)
        for _ in range(3):
            switch.set(True)
            assert (model.training, model.norm.training) == (True, False)
            model.norm.train()  # somebody meddles
        model.norm.eval()
        switch.set(False)
        assert not model.training

    @pytest.mark.filterwarnings("ignore")
    def test_a_scripted_model(self) -> None:
        model = torch.jit.script(nn.Sequential(nn.Dropout()))
        switch = TrainingSwitch(model)
        for training in (True, True, False, False, True):
            switch.set(training)
            assert model.training == training
            model.train(not training)


class TestFeedForward:
    @pytest.mark.parametrize("function", [backend.feed_forward, feed_forward])
    def test_runs_in_a_mode(self, function: Any) -> None:
        model = nn.Dropout(0.5)
        x = torch.ones(1000)
        assert torch.equal(function(model, x, training=False), x)
        assert not model.training
        assert not torch.equal(function(model, x), x)
        assert model.training

    def test_several_inputs_and_arrays(self) -> None:
        model = nn.Bilinear(2, 3, 4)
        a, b = np.ones((1, 2), "float32"), torch.ones(1, 3)
        expected = model(torch.ones(1, 2), b)
        assert torch.equal(backend.feed_forward(model, a, b), expected)

    def test_what_is_no_model(self) -> None:
        with pytest.raises(ValueError, match="function"):
            backend.feed_forward(line, torch.ones(1, 2))
