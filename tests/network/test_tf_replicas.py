"""Steps spread over several devices, in a process of their own that has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.tf, pytest.mark.slow]

PROGRAMS = Path(__file__).with_name("replica_programs.py")

Outcomes = dict[str, dict[str, str]]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """For each class of tests, what is wrong with each test of it; "" where nothing is."""
    report = tmp_path_factory.mktemp("replicas") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junit-xml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(PROGRAMS)],
        cwd=PROGRAMS.parents[2],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Outcomes = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        faults = [each for kind in ("failure", "error") for each in case.iter(kind)]
        area = case.attrib["classname"].rpartition(".")[2]
        if case.find("skipped") is None:
            found[area][case.attrib["name"]] = "\n".join(str(each.text) for each in faults)
    return dict(found)


@pytest.mark.parametrize(
    "area",
    [
        "TestTraining",
        "TestOpenedElsewhere",
        "TestSteps",
        "TestErrors",
        "TestTransform",
        "TestSlicers",
        "TestBuild",
        pytest.param(
            "TestAgainstFastEstimator",
            marks=pytest.mark.skipif(find_spec("fastestimator") is None, reason="not installed"),
        ),
    ],
)
def test_programs(outcomes: Outcomes, area: str) -> None:
    ran = outcomes[area]
    faults = [f"{name}\n{text}" for name, text in ran.items() if text]
    assert not faults, "\n\n".join(faults)
    assert ran


def test_no_program_is_left_out(outcomes: Outcomes) -> None:
    source = PROGRAMS.read_text(encoding="utf-8")
    there = set(re.findall(r"^class (Test\w+)", source, re.MULTILINE))
    if find_spec("fastestimator") is None:
        there.remove("TestAgainstFastEstimator")
    assert set(outcomes) == there


def test_devices_can_be_set_up_after_the_import() -> None:
    program = """
import tensorflow as tf
from fastnet.network import TFNetwork
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print(len(tf.config.list_logical_devices("CPU")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
