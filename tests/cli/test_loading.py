"""MODULE:NETWORK, and what is said where it leads nowhere."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from fastnet.cli.loading import find, load_network
from fastnet.cli.usage import UsageError


@pytest.mark.parametrize(
    "place",
    [
        "networks:network",
        "networks:make_network",
        "networks.py:make_network",
        "package.inner:make_network",
    ],
)
def test_a_network(place: str, folder: Path) -> None:
    network = load_network(place)
    with network(mode="infer", epoch=1):
        assert network.ctx_outputs == {"y", "nobody_reads_this"}


def test_a_file_in_another_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    # it imports a module that lies beside it
    network = load_network(f"{folder / 'networks.py'}:network")
    assert len(network.ops) == 3
    # and its functions can be read, which AutoGraph does
    assert "FACTOR" in inspect.getsource(
        find(f"{folder / 'networks.py'}:make_network", "NAME", bool)
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "networks",
            "'networks' does not say MODULE:NETWORK: the name of a module or a file, a colon, and "
            "a name in it, such as networks.py:make_network.",
        ),
        (
            "networks:",
            "'networks:' does not say MODULE:NETWORK: the name of a module or a file, a colon, "
            "and a name in it, such as networks.py:make_network.",
        ),
        (
            "netwrks:network",
            "there is no module 'netwrks': 'netwrks' is not found in {folder} or among what is "
            "installed. Did you mean 'networks'? Run this from the folder that the module lies "
            "in, or name its file.",
        ),
        (
            "package.iner:make_network",
            "there is no module 'package.iner': 'iner' is not found in the package 'package'. Did "
            "you mean 'inner'? Run this from the folder that the module lies in, or name its file.",
        ),
        ("netwrks.py:network", "there is no file 'netwrks.py'. Did you mean networks.py?"),
        (
            "package/iner.py:network",
            "there is no file 'package/iner.py'. Did you mean package/inner.py?",
        ),
        ("no/where.py:network", "there is no file 'no/where.py'."),
        ("networks:netwrk", "networks has no 'netwrk'. Did you mean networks:network?"),
        # a module, a class, a number and what needs arguments are none
        ("networks:npp", "networks has no 'npp'. It has: endless, make_network, network."),
        ("networks:LamdaOp", "networks has no 'LamdaOp'. It has: endless, make_network, network."),
        (
            "networks:make_size",
            "networks has no 'make_size'. It has: endless, make_network, network.",
        ),
        ("beside:zzz", "beside has no 'zzz'. It has nothing that could be named here."),
        (
            "networks:number",
            "'networks:number' is of type int. It must be a fastnet Network, or a function "
            "without arguments that makes one.",
        ),
        (
            "networks:endless",
            "'networks:endless' is of type generator. It must be a fastnet Network, or a function "
            "without arguments that makes one.",
        ),
        (
            "networks.py:make_sized",
            "'networks.py:make_sized' cannot be called without arguments: missing a required "
            "argument: 'size'. Write a function that gives it what it needs, and name that.",
        ),
    ],
)
def test_what_is_no_network(place: str, message: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_network(place)
    assert str(caught.value) == message.format(folder=folder)


def test_a_file_is_run_once(folder: Path) -> None:
    once = find("networks.py:network", "NAME", bool)
    assert find("networks.py:network", "NAME", bool) is once
    assert find("./networks.py:network", "NAME", bool) is once
    assert find("networks:network", "NAME", bool) is once


@pytest.mark.parametrize("module", [json, sys])  # one with a file, and one without
def test_a_file_that_has_the_name_of_another_module(module: ModuleType, folder: Path) -> None:
    name = module.__name__
    (folder / f"{name}.py").write_text("from networks import network\n")
    assert load_network(f"{name}.py:network") is find("networks:network", "NAME", bool)
    assert sys.modules[name] is module


def test_a_file_that_fails_is_run_again_once_it_is_mended(folder: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        find("broken.py:value", "NAME", bool)
    (folder / "broken.py").write_text("value = 'mended, with another length'\n")
    assert find("broken.py:value", "NAME", bool) == "mended, with another length"


@pytest.mark.parametrize("place", ["broken:network", "broken.py:network"])
def test_a_fault_inside_of_the_module_is_its_own(place: str, folder: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_nowhere"):
        load_network(place)
