"""docs/overhead.md: its commands run, print what it shows, and make its pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fastnet.cli import main
from fastnet.profiling import Profile
from tests.docs.overhead_page import PAGE, ROOT, Shown, first_column, pictures, read

pytest.importorskip("sklearn")

TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = read(TEXT)
IN_TENSORFLOW = [shown for shown in COMMANDS if "overhead_tf" in str(shown)]
IN_TORCH = [shown for shown in COMMANDS if shown not in IN_TENSORFLOW]

# the last of two options counts
QUICK = ["--steps", "12", "--skip", "1"]
QUICK_IN_TENSORFLOW = ["--steps", "21"]  # two epochs, and the first step of the third
LARGEST = 150_000


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the commands read, for them to write into."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "build").mkdir()
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_shows_each_command() -> None:
    assert {shown.words[0] for shown in COMMANDS} == {"explain", "profile"}
    assert len(IN_TORCH) == 3
    assert len(IN_TENSORFLOW) == 1
    assert TEXT.count("```console") == len(COMMANDS)


def test_in_torch(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("matplotlib.image")
    threads = torch.get_num_threads()
    try:
        for shown in IN_TORCH:
            quick = QUICK if shown.words[0] == "profile" else []
            assert main([*shown.words, *quick]) == 0, shown
            check_output(shown, capsys.readouterr().out)
    finally:
        torch.set_num_threads(threads)
    assert pictures(TEXT)
    for name in pictures(TEXT):
        assert image.imread(checkout / name).std() > 0.01  # it is not blank


@pytest.mark.tf
def test_in_tensorflow(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    (shown,) = IN_TENSORFLOW
    assert main([*shown.words, *QUICK_IN_TENSORFLOW]) == 0
    printed = capsys.readouterr().out
    check_output(shown, printed)
    again = [line for line in printed.splitlines() if line.startswith("trace")]
    with_tensor = [word.replace(":with_int", ":with_tensor") for word in shown.words]
    assert main([*with_tensor, *QUICK_IN_TENSORFLOW]) == 0
    once = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trace")]
    assert len(once) == 1
    assert len(again) == 3
    assert [re.search(r"'epoch' is \d", line) is not None for line in again] == [False, True, True]


def check_output(shown: Shown, printed: str) -> None:
    """Compare what a command prints with what the page shows: of a profile, the rows."""
    if shown.output is None:
        assert printed == ""
    elif shown.words[0] == "explain":
        assert printed == shown.output
    else:
        rows = {first_column(line) for line in printed.splitlines()}
        assert {first_column(line) for line in shown.output.splitlines()} - {"..."} <= rows


def test_pictures_are_there_and_small() -> None:
    there = {f"docs/pictures/{path.name}" for path in (ROOT / "docs" / "pictures").iterdir()}
    assert there == set(pictures(TEXT))
    for name in there:
        assert (ROOT / name).stat().st_size < LARGEST, name


def test_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    measured, compared, looped = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(measured, names)
    (section,) = Profile.from_json("before.json").sections
    assert section.steps == 200
    exec(compared, names)
    (step,) = names["comparison"].steps
    assert step.section == "infer"
    assert step.ratio == step.after.p50 / step.before.p50
    exec(looped, names)
    assert names["epoch"].count == 20
