"""examples/distributed.py: several processes read as many digits right as one does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")
pytest.importorskip("sklearn")

from tests.subprocesses import run_python

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "distributed.py"
LINE = re.compile(r"^(\d+) process(?:es)?: ([\d.]+)% of (\d+) digits right$", re.MULTILINE)


def run(*command: str) -> dict[int, float]:
    """Run the program, and return the accuracy for each number of processes."""
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    return {int(count): float(share) for count, share, _ in LINE.findall(done.stdout)}


def launched(count: int, *options: str) -> dict[int, float]:
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    return run(*torchrun, str(PROGRAM), "--epochs=6", *options)


@pytest.mark.parametrize(("count", "parallel"), [(2, "ddp"), (3, "fsdp")])
def test_as_many_digits_as_one_process(count: int, parallel: str) -> None:
    shares = launched(count, "--parallel", parallel)
    assert shares.keys() == {count, 1}
    # a digit at most, which rounding may have read otherwise
    assert abs(shares[count] - shares[1]) < 0.25
    assert shares[1] > 85


@pytest.mark.tf
def test_in_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("fastnet.backend.tf.processes")
    shares = launched(2, "--framework", "tf")
    assert shares.keys() == {2, 1}
    # a digit at most, which rounding may have read otherwise
    assert abs(shares[2] - shares[1]) < 0.25
