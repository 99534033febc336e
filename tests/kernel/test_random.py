"""Random programs: the compiled kernel does what the oracle does, and says what it says."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from tests.kernel import graphs, nests, traces
from tests.kernel.ops import Op, Slicer
from tests.reference import Kernel

Kernels = tuple[Kernel, Kernel]
values = st.integers() | st.lists(st.integers(), max_size=3) | st.text(max_size=3) | st.none()


def same(kernels: Kernels, work: Any) -> Any:
    """Run the same work on both kernels, and insist that it comes to the same."""
    compiled, reference = (work(kernel) for kernel in kernels)
    assert compiled == reference
    return compiled


@given(
    ops=graphs.recipes(),
    pops=graphs.recipes(),
    cutters=graphs.slicers(),
    mode=st.sampled_from(graphs.MODES),
    ds_id=st.none() | st.sampled_from(graphs.DS_IDS),
    desired=graphs.wanted,
    batch=graphs.batches,
    around=st.booleans(),
)
def test_entering_and_running(
    kernels: Kernels,
    ops: list[graphs.Recipe],
    pops: list[graphs.Recipe],
    cutters: list[Slicer],
    mode: str,
    ds_id: str | None,
    desired: set[str] | None,
    batch: dict[str, Any],
    around: bool,
) -> None:
    came_to, _ = same(
        kernels,
        lambda kernel: graphs.open_and_run(
            kernel, ops, pops, cutters, mode, ds_id, desired, batch, around=around
        ),
    )
    event(came_to)


@given(
    ops=graphs.recipes(),
    desired=graphs.wanted,
    batch=st.just({name: f"batch {name}" for name in graphs.KEYS}),
    measured=st.booleans(),
    around=st.booleans(),
)
def test_running_without_slicers(
    kernels: Kernels,
    ops: list[graphs.Recipe],
    desired: set[str] | None,
    batch: dict[str, Any],
    measured: bool,
    around: bool,
) -> None:
    # with slicers most contexts are refused; without, most of them run
    came_to, _ = same(
        kernels,
        lambda kernel: graphs.open_and_run(
            kernel, ops, [], [], "train", "one", desired, batch, measured, around
        ),
    )
    event(came_to)


@given(
    inputs=graphs.keys,
    outputs=graphs.keys,
    in_list=st.booleans(),
    out_list=st.booleans(),
    store=st.dictionaries(st.sampled_from(graphs.KEYS), values),
    returned=values,
)
def test_reading_and_writing(
    kernels: Kernels,
    inputs: list[str],
    outputs: list[str],
    in_list: bool,
    out_list: bool,
    store: dict[str, Any],
    returned: Any,
) -> None:
    op = Op(inputs, outputs, in_list=in_list, out_list=out_list)

    def work(kernel: Kernel) -> Any:
        own = dict(store)
        read = graphs.outcome(lambda: kernel.get_inputs_by_op(op, own))
        written = graphs.outcome(lambda: kernel.write_outputs_by_op(op, own, returned))
        return read, written, own

    same(kernels, work)


@given(
    cutters=graphs.slicers(),
    batch=st.dictionaries(
        st.sampled_from(graphs.KEYS), st.lists(st.integers(), min_size=3, max_size=4), min_size=4
    ),
    made=st.dictionaries(st.sampled_from([*graphs.KEYS, "new"]), values, max_size=2),
)
def test_slicing(
    kernels: Kernels,
    cutters: list[Slicer],
    batch: dict[str, Any],
    made: dict[str, Any],
) -> None:
    before = {key: list(value) for key, value in batch.items()}

    def work(kernel: Kernel) -> list[Any]:
        seen = [graphs.outcome(lambda: kernel.check_slicers(cutters))]
        cut = graphs.outcome(lambda: kernel.forward_slicers(cutters, batch))
        seen.append(cut)
        if cut[0] == "returned":
            minibatches = [{**minibatch, **made} for minibatch in cut[1]]
            seen.append(graphs.outcome(lambda: kernel.reverse_slicers(cutters, minibatches, batch)))
        return seen

    seen = same(kernels, work)
    assert batch == before
    event(f"cut: {seen[1][0]}")


@given(data=nests.nests, when=st.sampled_from([None, "live"]))
def test_nests(kernels: Kernels, data: Any, when: str | None) -> None:
    before = nests.shape(data)

    def bump(leaf: nests.Leaf) -> nests.Leaf:
        return type(leaf)(leaf.value + 1, leaf.live)

    def walk(kernel: Kernel) -> Any:
        mapped = kernel.map_leaves(data, lambda leaf: (repr(leaf),))
        leaves = kernel.leaves_of(data), kernel.leaves_of(data, builtin_only=True)
        return nests.shape(mapped), repr(leaves)

    same(kernels, walk)
    compiled, reference = (kernel.NestMap(nests.Leaf, bump, when)(data) for kernel in kernels)
    assert nests.shape(compiled) == nests.shape(reference)
    assert nests.shape(data) == before
    check_sharing(compiled, reference, data)
    if not nests.holds_leaf(data):
        assert nests.shape(compiled) == before
    if isinstance(data, dict | list | set) or nests.holds_leaf(data):
        # what was mapped shares nothing that can be written to, whatever is written to it
        assert not own_containers(compiled) & nests.ids_of(data)


def check_sharing(compiled: Any, reference: Any, data: Any) -> None:
    """Insist that both results share the same parts with the data that they were made from."""
    assert (compiled is data) == (reference is data)
    if isinstance(data, set | frozenset):
        return  # the parts of a set have no place to compare them by
    places = [dict(nests.parts_of(nest)) for nest in (compiled, reference, data)]
    for place in places[2]:
        check_sharing(*(found[place] for found in places))


def own_containers(data: Any) -> set[int]:
    """The identity of each dict, list and set that is not inside a shared dataclass."""
    own = {id(data)} if isinstance(data, dict | list | set) else set()
    if not isinstance(data, dict | list | set | tuple):
        return own
    return own.union(*(own_containers(part) for _, part in nests.parts_of(data)))


def spelled_out(forms: Any) -> str:
    """Return the `repr` of forms without addresses, which snapshots show."""
    return re.sub(r" at 0x\w+", "", repr(forms))


@given(batches=traces.batches, keys=st.permutations(["x", "y"]))
def test_traced_steps(kernels: Kernels, batches: list[dict[str, Any]], keys: list[str]) -> None:
    outputs = {"z": "x", "y": "y", "first": "first"}
    spelled = [repr(batch) for batch in batches]

    def work(kernel: Kernel) -> list[Any]:
        framework = traces.Framework(kernel)
        step = framework.step(keys, outputs, ["epoch"])
        seen: list[Any] = []
        # twice, so that each batch meets what was traced for all others
        for number, batch in enumerate([*batches, *batches]):
            seen.append(step.fits(batch))
            result = graphs.outcome(
                lambda batch=batch, number=number: step.step(batch, {"epoch": number})
            )
            seen += [repr(result), traces.types_of(result), len(framework.traced)]
            seen.append(spelled_out(step.programs[0][0].inputs) if step.programs else None)
        seen.append([[id(tensor) for tensor in tensors] for tensors in framework.called])
        return seen

    seen = same(kernels, work)
    assert [repr(batch) for batch in batches] == spelled
    # whatever was traced is known the second time, but for what many others drove out
    assert all(seen[5 * place] for place in range(len(batches), 2 * len(batches)))
    event(f"{seen[-3]} traces")


@given(value=traces.values)
def test_forms(kernels: Kernels, value: Any) -> None:
    before = repr(value)

    def work(kernel: Kernel) -> list[Any]:
        framework = traces.Framework(kernel)
        form = framework.adapter.form_of(value)
        numbers = iter(range(99))
        mapped = kernel.map_form(form, lambda part: next(numbers))
        shared = nests.ids_of(form) & nests.ids_of(value)
        return [spelled_out(form), traces.types_of(mapped), len(shared)]

    assert same(kernels, work)[-1] == 0
    assert repr(value) == before
