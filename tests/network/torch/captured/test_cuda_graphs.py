"""What is around the recording and replaying of a compiled function; a recorder stands for CUDA."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from fastnet.network.torch.captured.cuda_graphs import Graphed, reason_against, recorder_of
from tests.network.torch.captured.emulated import CPU, Recorder


def step(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Add a batch to a weight in place; the list is emptied, as Inductor's functions do it."""
    weight, batch = inputs
    inputs.clear()
    weight.add_(batch.sum())
    return [batch * weight, weight * 2]


def make(call: Any = step, fixed: tuple[int, ...] = (0,)) -> tuple[Graphed, Recorder, list[str]]:
    recorder, told = Recorder(), list[str]()
    return Graphed(call, fixed, recorder, told.append), recorder, told


def test_no_call_does_its_work_twice_and_each_has_its_own_inputs_and_results() -> None:
    graphed, recorder, told = make()
    weight, expected, kept = torch.zeros(()), 0.0, []
    for place in range(6):
        batch = torch.arange(3.0) + place
        expected += float(batch.sum())
        results = graphed([weight, batch])
        assert float(weight) == expected
        kept.append((results, [batch * expected, torch.tensor(expected * 2)]))
    # what was given is not written to by later ones
    for results, wanted in kept:
        for one, other in zip(results, wanted, strict=True):
            assert torch.equal(one, other)
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (1, 1, 5)
    assert recorder.begun == 6
    assert told == []


def test_a_batch_may_go_after_its_step_and_is_not_written_to() -> None:
    graphed, _, _ = make(lambda inputs: [inputs[1].mul_(2)], ())
    for _ in range(4):
        weight, batch = torch.zeros(()), torch.ones(3)
        (result,) = graphed([weight, batch])
        assert torch.equal(result, torch.full((3,), 2.0))
        if graphed.recordings:
            assert torch.equal(batch, torch.ones(3))


def test_what_is_elsewhere_is_recorded_anew() -> None:
    graphed, recorder, told = make()
    weights = [torch.zeros(()) for _ in range(3)]
    for weight in weights:
        for _ in range(3):
            graphed([weight, torch.ones(2)])
    assert [float(weight) for weight in weights] == [6.0, 6.0, 6.0]
    assert graphed.recordings == recorder.recorded == 3
    assert recorder.warmed == 1
    # the same object with other memory
    before = weights[2].clone()
    weights[2].set_(before)  # type: ignore[call-overload]
    graphed([weights[2], torch.ones(2)])
    assert float(before) == 8.0
    assert graphed.recordings == 4
    assert told == []


def test_what_is_elsewhere_in_each_step_goes_on_without() -> None:
    graphed, recorder, told = make()
    kept = [torch.zeros(()) for _ in range(20)]
    for weight in kept:
        graphed([weight, torch.ones(2)])
    assert [float(weight) for weight in kept] == [2.0] * 20
    assert recorder.recorded == 8
    assert told == ["what it reads and writes was elsewhere 8 times"]
    assert recorder.failed is None


def test_what_cannot_be_recorded_goes_on_without_and_so_do_all_others() -> None:
    first, recorder, told = make()
    others: list[str] = []
    second = Graphed(step, (0,), recorder, others.append)
    weight, other = torch.zeros(()), torch.zeros(())
    for place in range(6):
        recorder.error = RuntimeError("not permitted\nmore of it") if place == 3 else None
        second([other, torch.ones(2)])
        if place > 1:
            first([weight, torch.ones(2)])
    assert (float(weight), float(other)) == (8.0, 12.0)
    reason = "recording one has failed with RuntimeError: not permitted"
    assert told == [reason]
    assert others == [reason]
    assert recorder.recorded == 2


def test_an_interrupt_while_recording_is_raised_and_the_next_call_works() -> None:
    graphed, recorder, told = make()
    weight = torch.zeros(())
    graphed([weight, torch.ones(2)])
    recorder.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        graphed([weight, torch.ones(2)])
    graphed([weight, torch.ones(2)])
    assert float(weight) == 4.0
    assert len(told) == 1


def test_strides_of_inputs_and_results_are_kept() -> None:
    seen: list[tuple[int, ...]] = []

    def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.append(inputs[0].stride())
        return [inputs[0] + 1, inputs[0][:, :1].expand(3, 4), inputs[0][:0]]

    graphed, _, _ = make(call, ())
    for _ in range(4):
        batch = torch.rand(2, 3).T
        one, wide, empty = graphed([batch])
        assert one.stride() == (batch + 1).stride()
        assert wide.stride() == (1, 0)
        assert torch.equal(wide, batch[:, :1].expand(3, 4))
        assert empty.shape == (0, 2)
    assert set(seen) == {(1, 3)}


def test_an_input_that_is_a_result_is_the_callers_own() -> None:
    graphed, _, _ = make(lambda inputs: [inputs[1]])
    results = [graphed([torch.zeros(()), torch.full((2,), float(place))])[0] for place in range(5)]
    assert [float(one[0]) for one in results] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_threads_take_turns() -> None:
    graphed, _, _ = make(lambda inputs: [inputs[0] * 2], ())
    wrong: list[Any] = []

    def run(seed: int) -> None:
        for place in range(100):
            batch = torch.full((50,), float(seed * 1000 + place))
            (found,) = graphed([batch])
            if not torch.equal(found, batch * 2):
                wrong.append(place)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_graphs_are_recorded_of_the_cpu() -> None:
    assert recorder_of(CPU) is None


def test_operations_that_are_not_torchs_own_are_not_recorded() -> None:
    def own(x: torch.Tensor) -> torch.Tensor:
        return x.max(0)[0] + 1

    graph = torch.fx.experimental.proxy_tensor.make_fx(own)(torch.ones(2, 2))
    assert reason_against(graph) is None
    torch.library.define("fastnet_tests::foreign", "(Tensor x) -> Tensor")
    other = torch.fx.Graph()
    result = other.call_function(torch.ops.fastnet_tests.foreign.default, (other.placeholder("x"),))
    other.output(result)
    reason = reason_against(torch.fx.GraphModule({}, other))
    assert reason is not None
    assert reason.startswith("the operation fastnet_tests.foreign.default is not torch's own")
