"""Tests in a process of their own: for what a process can have only before a framework starts.

A module marked `own_process` is collected like any other, but its tests run together in a second
pytest, whose import of the module asks for what they need (see `is_here`). What each test comes to
there is reported here under its own id, with its own failure text.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

# names the file that the second process leaves its reports in
VARIABLE = "FASTNET_OWN_PROCESS"


@dataclass
class Run:
    """What the second process came to: each test's reports, and all that it printed."""

    output: str
    reports: dict[str, list[pytest.TestReport]] = field(default_factory=lambda: defaultdict(list))


_runs = pytest.StashKey[dict[Path, Run]]()


def is_here() -> bool:
    """Whether this is the second process, where the tests do run."""
    return VARIABLE in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report what a test came to in the process of its own; the first of a module starts it."""
    if is_here() or item.get_closest_marker("own_process") is None:
        return None
    runs = item.session.stash.setdefault(_runs, {})
    if item.path not in runs:
        runs[item.path] = _run_module(item)
    run = runs[item.path]
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = run.reports[item.nodeid]
    if not any(report.when == "teardown" for report in reports):
        reports = [*reports, _missing(item, run)]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # what an item before this has set up for both of them is not for the next
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the second process, leave the report where the first one looks for it."""
    report = yield
    if is_here():
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with open(os.environ[VARIABLE], "ab") as file:
            pickle.dump(data, file)
    return report


def _run_module(item: pytest.Item) -> Run:
    """Run all tests of an item's module that were chosen for this session."""
    wanted = [each.nodeid for each in item.session.items if each.path == item.path]
    with TemporaryDirectory() as folder:
        ids, results = Path(folder, "ids"), Path(folder, "reports")
        ids.write_text("\n".join(wanted), encoding="utf-8")
        results.touch()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{ids}"],
            cwd=item.config.rootpath,
            env={
                **os.environ,
                VARIABLE: str(results),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        run = Run(done.stdout)
        with results.open("rb") as file, suppress(EOFError):
            while True:
                report = item.config.hook.pytest_report_from_serializable(
                    config=item.config, data=pickle.load(file)
                )
                run.reports[report.nodeid].append(report)
    return run


def _missing(item: pytest.Item, run: Run) -> pytest.TestReport:
    """Make the report of a test in which the second process ended, or before which it did."""
    return pytest.TestReport(
        item.nodeid,
        item.location,
        keywords={},
        outcome="failed",
        longrepr=f"The process of its own ended here, or before:\n{run.output}",
        when="call",
    )
