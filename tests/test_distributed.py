"""fastnet.distributed: processes that train together, told apart, and ended as one."""

from __future__ import annotations

import operator
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from fastnet import distributed
from fastnet.errors import RankError
from tests.launched import ended, in_ranks

pytestmark = pytest.mark.slow


class TestOneProcess:
    @pytest.mark.fast
    def test_nothing_is_done(self) -> None:
        distributed.init()
        assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
        assert distributed.compares_ranks()
        distributed.barrier()
        result = {"loss": torch.tensor(3), "x": [1]}
        gathered = distributed.gather(result)
        assert gathered == result
        assert gathered is not result
        distributed.shutdown()
        assert not dist.is_initialized()

    @pytest.mark.fast
    def test_as_a_context_manager(self) -> None:
        with distributed.run(seed=3) as entered:
            assert isinstance(entered, distributed.run)
            drawn = random.random(), np.random.random(), torch.rand(())
        distributed.seed_ranks(3)
        assert drawn == (random.random(), np.random.random(), torch.rand(()))
        error = ValueError("mine")
        with pytest.raises(ValueError, match=r"^mine$") as raised, distributed.run():
            raise error
        assert raised.value is error
        assert not issubclass(ValueError, distributed.RankError)

    def test_no_framework_is_imported(self) -> None:
        code = (
            "import sys; from fastnet import distributed\n"
            "with distributed.run(): distributed.barrier(); distributed.gather({'x': 1})\n"
            "print({'torch', 'tensorflow'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("set()\n", "")


class TestRanks:
    @pytest.mark.parametrize("count", [2, 3])
    def test_each_has_its_place(self, count: int) -> None:
        assert in_ranks(count, places) == [
            ((place, count, place == 0), "gloo", False) for place in range(count)
        ]

    def test_a_group_of_the_program_stays_its_own(self) -> None:
        assert in_ranks(2, adopted) == [(0, 2, True), (1, 2, True)]

    def test_the_timeout_and_the_backend_are_passed_on(self) -> None:
        told = [one.lower() for one in in_ranks(2, impatient)]
        # the first one to give up closes the connection, which the other may see before its time
        late = ["timed out" in one or "timeout" in one for one in told]
        closed = ["connection closed by peer" in one for one in told]
        assert any(late)
        assert all(map(operator.or_, late, closed))

    def test_random_numbers_are_each_ones_own(self) -> None:
        first, second = in_ranks(2, drawn)
        assert first == drawn_by_hand(7)
        assert second == drawn_by_hand(8)


@pytest.fixture(scope="module")
def gathered() -> Any:
    return in_ranks(2, gathers)


class TestGather:
    def test_all_ranks_get_the_same(self, gathered: Any) -> None:
        first, second = gathered
        assert repr(first) == repr(second)

    def test_means_of_scalars(self, gathered: Any) -> None:
        even = gathered[0]["even"]
        assert torch.equal(even["loss"], torch.tensor(2.0))
        assert even["loss"].dtype == torch.float32
        assert torch.equal(even["nan"], torch.tensor(1.0))
        assert torch.isnan(even["nans"])
        assert torch.equal(even["count"], torch.tensor(0.5, dtype=torch.float64))
        assert torch.equal(even["flag"], torch.tensor(0.5, dtype=torch.float64))
        assert even["half"].dtype == torch.bfloat16
        assert torch.equal(even["complex"], torch.tensor(1j))
        assert (even["python"], even["word"], even["none"]) == (0.5, "rank 0", None)

    def test_what_has_axes_is_joined(self, gathered: Any) -> None:
        even = gathered[0]["even"]
        assert even["rows"].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert even["nest"][0]["a"].tolist() == [0, 0, 1, 1]
        assert even["array"].tolist() == [0, 0, 1, 1]

    def test_uneven_batches_are_weighed(self, gathered: Any) -> None:
        """As if all samples had been in one process."""
        uneven = gathered[0]["uneven"]
        samples = [float(value) for value in range(5)]
        assert uneven["x"].tolist() == samples
        assert uneven["mean"].item() == np.mean(samples)
        assert gathered[0]["told"]["mean"].item() == np.mean(samples)
        # NaN on the larger part leaves the smaller one's
        assert uneven["partly"].item() == 5.0
        # of several lengths none is the number of samples
        assert gathered[0]["ambiguous"]["mean"].item() == (1.0 + 3.5) / 2

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (
                "keys",
                "Results are gathered under the keys ['loss'] on rank 0, but ['lost'] on rank 1. "
                "Gather the same keys on each.",
            ),
            (
                "nests",
                "The value of 'x' holds different numbers of values on the ranks, [1, 2], so that "
                "they cannot be put together. What ops return must not depend on which part of "
                "the data they see.",
            ),
            (
                "shapes",
                "The value of 'x' has the shapes [(1, 2), (1, 3)] on the ranks, which cannot be "
                "joined along the first axis. Leave it out of what is gathered, or let the others "
                "agree.",
            ),
            (
                "kinds",
                "The value of 'x' is of different types on the ranks, ['Tensor', 'float'], so that "
                "they cannot be put together. Let it be a tensor on each, or on none.",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_on_each(
        self, gathered: Any, name: str, text: str
    ) -> None:
        assert [one["errors"][name] for one in gathered] == [text, text]

    def test_no_dict(self) -> None:
        with pytest.raises(
            TypeError, match=r"^gather takes a result, a dict of values by key, but got list"
        ):
            distributed.gather([1])  # type: ignore[arg-type]


class TestFailures:
    @pytest.mark.parametrize("failing", [0, 1])
    @pytest.mark.parametrize("others", ["in_a_collective", "at_work", "done"])
    def test_one_that_raises_ends_all(self, failing: int, others: str) -> None:
        before = time.monotonic()
        ranks = ended(3, fails, failing, others, seconds=100)
        for one in ranks:
            assert one.error is not None
            if one.rank == failing:
                assert "ValueError: the data is spoilt" in one.error
                assert "RankError" not in one.error
            else:
                told = f"RankError: Rank {failing} has failed with ValueError: the data is spoilt"
                assert told in one.error
        assert time.monotonic() - before < 90

    def test_one_that_does_not_come_back_is_ended(self) -> None:
        """Where nothing of Python runs any more, so that nothing can be raised."""
        first, second = ended(2, hangs, seconds=100)
        assert "ValueError: the data is spoilt" in str(first.error)
        assert (second.error, second.exitcode) == ("It has ended without a word.", 1)

    def test_a_program_may_go_on_after_it(self) -> None:
        assert in_ranks(2, goes_on) == [("ValueError", False), ("RankError", False)]

    def test_under_torchrun(self, tmp_path: Path) -> None:
        """Each rank prints its own error before torchrun ends it."""
        program = tmp_path / "program.py"
        program.write_text(
            "import sys, torch; from fastnet import distributed\n"
            "with distributed.run():\n"
            "    if distributed.rank() == 1: raise ValueError('the data is spoilt')\n"
            "    torch.distributed.all_reduce(torch.ones(2))\n"
        )
        done = torchrun(program, 2)
        assert done.returncode == 1
        assert "[rank1]: ValueError: the data is spoilt" in done.stderr
        assert "[rank1]: Raised on rank 1 of 2." in done.stderr
        assert "RankError: Rank 1 has failed with ValueError: the data is spoilt" in done.stderr

    @pytest.mark.parametrize("other", ["in_a_collective", "at_work", "at_the_end"])
    def test_each_prints_the_traceback_once(self, other: str, tmp_path: Path) -> None:
        """The other one by the name of the rank that it is of, also if it has to be interrupted."""
        program = tmp_path / "program.py"
        program.write_text(
            "import torch; from fastnet import distributed\n"
            "with distributed.run():\n"
            "    if distributed.rank() == 1:\n"
            "        {}['x']  # spoilt\n"
            f"    if {other == 'in_a_collective'}: torch.distributed.all_reduce(torch.ones(2))\n"
            f"    while {other == 'at_work'}: sum(range(1000))\n"
        )
        done = torchrun(program, 2)
        of_one = [line for line in done.stderr.splitlines() if line.startswith("[rank1]:")]
        of_other = [line for line in done.stderr.splitlines() if line.startswith("[rank0]:")]
        raised = "{}['x']  # spoilt"
        assert [line for line in of_one if raised in line] == [f"[rank1]:     {raised}"]
        assert [line for line in of_other if raised in line] == [f"[rank0]:   |     {raised}"]
        assert done.stderr.count(raised) == 2
        begin = of_other.index("[rank0]: The traceback of rank 1:")
        assert of_other[begin + 1] == "[rank0]:   | Traceback (most recent call last):"
        assert of_other[-1] == "[rank0]:   | KeyError: 'x'"


class TestBadInput:
    def test_a_variable_that_lacks(self) -> None:
        (one,) = ended(1, lacking)
        assert str(one.error).splitlines()[-1] == (
            "ValueError: This is one of 2 processes, but ['MASTER_ADDR'] is not in the "
            "environment. Start the program with torchrun, or set what is missing."
        )

    def test_no_group_under_torchrun(self) -> None:
        assert in_ranks(1, alone, WORLD_SIZE=2) == [
            [
                f"{what}, in a process that was started as one of 2 (rank 0), but there is no "
                "process group: each would train by itself. Put `with "
                "fastnet.distributed.run():` around the program, or call "
                "fastnet.distributed.init() first."
                for what in ("A barrier is waited at", "Results are gathered")
            ]
        ]

    @pytest.mark.parametrize(
        ("device", "text"),
        [
            ("cuda:77", "Rank 0 is to run on 'cuda:77', but this machine has "),
            ("gpu", "fastnet.distributed got the device 'gpu', which torch does not know: "),
        ],
    )
    def test_a_device_that_is_not_there(
        self, monkeypatch: pytest.MonkeyPatch, device: str, text: str
    ) -> None:
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.setenv(name, "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
            distributed.init("torch", device=device)
        assert not dist.is_initialized()
        assert distributed.world_size() == 1

    def test_a_cluster_that_cannot_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TF_CONFIG", "{")
        with pytest.raises(ValueError, match=r"^TF_CONFIG is in the environment, but cannot be"):
            distributed.init()


# --------------------------------------------------------------------------- what ranks run


def places() -> Any:
    with distributed.run():
        place = distributed.rank(), distributed.world_size(), distributed.is_main()
        backend = dist.get_backend()
        distributed.barrier()
    return place, backend, dist.is_initialized()


def adopted() -> Any:
    dist.init_process_group("gloo")
    with distributed.run():
        assert dist.is_initialized()
    place = distributed.rank(), distributed.world_size(), dist.is_initialized()
    dist.destroy_process_group()
    return place


def impatient() -> str:
    distributed.init(backend="gloo", timeout=1)
    store = distributed.rank()
    try:
        if store == 0:
            dist.barrier()
        else:
            dist.recv(torch.ones(1), 0)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def drawn() -> Any:
    with distributed.run(seed=7):
        return drawn_now()


def drawn_by_hand(seed: int) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return drawn_now()


def drawn_now() -> Any:
    return random.random(), np.random.random(), torch.rand(3).tolist()


def gathers() -> Any:
    with distributed.run():
        rank = distributed.rank()
        nan = float("nan")
        even = {
            "loss": torch.tensor([1.0, 3.0][rank]),
            "nan": torch.tensor([nan, 1.0][rank]),
            "nans": torch.tensor(nan),
            "count": torch.tensor(rank),
            "flag": torch.tensor(rank == 1),
            "half": torch.tensor(1.0, dtype=torch.bfloat16),
            "complex": torch.tensor([1j, 2.0][rank]),
            "rows": torch.full((2, 2), float(rank), requires_grad=True).detach(),
            "nest": [{"a": torch.tensor([rank, rank])}],
            "array": np.array([rank, rank]),
            "python": rank,
            "word": f"rank {rank}",
            "none": None,
        }
        x = [torch.arange(3.0), torch.arange(3.0, 5.0)][rank]
        uneven = {"x": x, "mean": x.mean(), "partly": torch.tensor([nan, 5.0][rank])}
        wrong: dict[str, Any] = {
            "keys": {["loss", "lost"][rank]: x},
            "nests": {"x": [x] * (1 + rank)},
            "shapes": {"x": torch.ones(1, 2 + rank)},
            "kinds": {"x": [torch.ones(()), 1.0][rank]},
        }
        return {
            "even": distributed.gather(even),
            "uneven": distributed.gather(uneven),
            "told": distributed.gather({"mean": x.mean()}, samples=len(x)),
            "ambiguous": distributed.gather({**uneven, "more": torch.ones(9)}),
            "errors": {name: error_of(result) for name, result in wrong.items()},
        }


def error_of(result: Any) -> str:
    try:
        distributed.gather(result)
    except ValueError as error:
        return str(error)
    return ""


def fails(failing: int, others: str) -> None:
    with distributed.run():
        if distributed.rank() == failing:
            raise ValueError("the data is spoilt")
        if others == "in_a_collective":
            dist.all_reduce(torch.ones(3))
        while others == "at_work":
            sum(range(1000))


def hangs() -> None:
    with distributed.run():
        if distributed.rank() == 0:
            raise ValueError("the data is spoilt")
        import _thread

        lock = _thread.allocate_lock()
        lock.acquire()
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            lock.acquire(timeout=1)


def goes_on() -> Any:
    name = ""
    try:
        with distributed.run():
            if distributed.rank() == 0:
                raise ValueError("mine")
            distributed.barrier()
    except (RankError, ValueError) as error:
        name = type(error).__name__
    return name, dist.is_initialized()


def lacking() -> None:
    os.environ.pop("MASTER_ADDR")
    os.environ["WORLD_SIZE"] = "2"
    distributed.init()


def alone() -> list[str]:
    from fastnet.backend.torch import processes

    vars(processes)["_LAUNCHED"] = True  # as it is where the launcher has set it before the import
    texts = []
    for call in (processes.barrier, lambda: processes.gather({})):
        try:
            call()
        except ValueError as error:
            texts.append(str(error))
    return texts


# --------------------------------------------------------------------------- torchrun


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def torchrun(program: Path, count: int) -> Any:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={count}", str(program)),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    yield
    assert not dist.is_initialized()
