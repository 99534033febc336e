"""`fastnet bench`: finds the checkout, and passes on what it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastnet
from fastnet.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one of its own, so that nothing is measured here."""
    (tmp_path / "src" / "fastnet").mkdir(parents=True)
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "report.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(4)\n")
    (bench / "test_one.py").write_text(
        "def test_a_thing(benchmark):\n    benchmark(len, 'a')\n\n"
        "def test_another(benchmark):\n    benchmark(len, 'a')\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    return tmp_path


def test_arguments_are_passed_on(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # the checkout is found from any folder of it
    monkeypatch.chdir(checkout / "docs" / "pictures")
    assert main(["bench", "report", "--quick", "--workloads", "mlp_train", "-x"]) == 4
    assert capfd.readouterr().out == "['--quick', '--workloads', 'mlp_train', '-x']\n"


def test_the_suites(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pytest_benchmark")
    monkeypatch.chdir(checkout)
    # the suites must not take themselves for one of several processes, as this test may be
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    quick = ["--benchmark-max-time=0.001", "--benchmark-min-rounds=1", "-p", "no:cacheprovider"]
    assert main(["bench", "suites", "-k", "a_thing", *quick]) == 0
    printed = capfd.readouterr().out
    assert "1 passed, 1 deselected" in printed
    assert "1 tests" in printed  # the table of what was timed


def test_the_report_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # it is found where fastnet is imported from
    assert main(["bench", "report", "--help"]) == 0
    assert "--from-json FILE" in capfd.readouterr().out


def test_a_part_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--quick"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["bench", "reprot"])
    assert caught.value.code == 2
    assert "'reprot'" in capsys.readouterr().err


def test_where_there_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fastnet, "__file__", str(tmp_path / "lib" / "fastnet" / "__init__.py"))
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == (
        f"fastnet: the benchmarks are in fastnet's checkout, and {tmp_path} is not in one. Clone "
        "the repository, install it with `pip install -e '.[bench]'`, and run this from there.\n"
    )


def test_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a part, the suites run, and then the report; one that fails is the last."""
    started: list[list[str]] = []
    statuses = iter([0, 5, 3])

    def call(command: list[str], env: dict[str, str]) -> int:
        assert str(ROOT) in env["PYTHONPATH"]
        assert env["OMP_NUM_THREADS"]
        started.append(command[1:])
        return next(statuses)

    monkeypatch.setattr("subprocess.call", call)
    monkeypatch.chdir(ROOT / "src")
    suites = ["-m", "pytest", str(ROOT / "bench"), "--benchmark-only"]
    report = ["-m", "bench.report", "--save", str(ROOT / "build" / "bench")]
    assert main(["bench"]) == 5
    assert started == [suites, report]
    assert main(["bench"]) == 3
    assert started[2:] == [suites]


@pytest.mark.parametrize("part", ["instructions", "op-instructions"])
def test_the_parts_that_count(part: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", part, "--help"]) == 0
    assert f"python -m bench.{part.replace('-', '_')}" in capfd.readouterr().out
