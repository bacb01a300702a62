"""Meshes: data-parallel ranks and collecting ranks of every shape, against verl's masks on simulated meshes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.distributed.mesh import AXES, DATA_AXES, FIRST_COLLECTS, Mesh, build_mesh, data_parallel
from rlcore.errors import InvalidValueError


def coordinates(shape: dict[str, int]) -> dict[str, list[int]]:
    """Each rank's position on each axis of a mesh, as torch's DeviceMesh has it: ranks fill it row by row."""
    ranks = torch.arange(math.prod(shape.values())).view(*shape.values())
    found = {name: [0] * ranks.numel() for name in shape}
    for place in torch.cartesian_prod(*(torch.arange(size) for size in shape.values())).view(-1, len(shape)).tolist():
        for name, position in zip(shape, place, strict=True):
            found[name][int(ranks[tuple(place)])] = position
    return found


def test_fsdp_marks_every_rank() -> None:
    assert data_parallel(4) == Mesh((0, 1, 2, 3), (True,) * 4)
    assert build_mesh({"shard": 4}) == data_parallel(4)


def test_both_axes_of_hybrid_sharding_divide_the_batch() -> None:
    assert build_mesh({"replicate": 2, "shard": 2}) == data_parallel(4)


@pytest.mark.parametrize(("data", "sequence"), [(4, 1), (2, 2), (1, 4), (3, 2)])
def test_ulysses_is_collected_from_the_first_of_a_sequence_group(data: int, sequence: int) -> None:
    """verl's FSDP engine: mesh (dp, sp); the data rank is dp, and sp 0 is collected."""
    at = coordinates({"dp": data, "sp": sequence})
    mesh = build_mesh({"data": data, "sequence": sequence})
    assert mesh.data_ranks == tuple(at["dp"])
    assert mesh.collects == tuple(position == 0 for position in at["sp"])


@pytest.mark.parametrize(("data", "tensor"), [(2, 4), (4, 2), (1, 2)])
def test_tensor_parallelism_is_collected_from_its_first_rank(data: int, tensor: int) -> None:
    """verl's mesh "infer" of 8 ranks: (dp, tp)."""
    at = coordinates({"dp": data, "tp": tensor})
    mesh = build_mesh({"data": data, "tensor": tensor})
    assert (mesh.data_ranks, mesh.collects) == (tuple(at["dp"]), tuple(position == 0 for position in at["tp"]))


@pytest.mark.parametrize(("pipeline", "data", "context", "tensor"), [(2, 2, 1, 2), (2, 2, 2, 2), (3, 1, 2, 1)])
def test_megatron_is_collected_from_the_last_stage(pipeline: int, data: int, context: int, tensor: int) -> None:
    """verl's Megatron engine: the last pipeline stage where tensor and context rank are 0; order pp, dp, cp, tp."""
    at = coordinates({"pp": pipeline, "dp": data, "cp": context, "tp": tensor})
    mesh = build_mesh({"pipeline": pipeline, "data": data, "context": context, "tensor": tensor})
    assert mesh.data_ranks == tuple(at["dp"])
    stages = zip(at["tp"], at["pp"], at["cp"], strict=True)
    assert mesh.collects == tuple(tp == 0 and pp == pipeline - 1 and cp == 0 for tp, pp, cp in stages)


@given(shape=st.dictionaries(st.sampled_from(AXES), st.integers(1, 3), min_size=1, max_size=4), order=st.randoms())
def test_each_part_of_a_batch_is_read_by_one_group_and_collected_once(shape: dict[str, int], order: Any) -> None:
    names = list(shape)
    order.shuffle(names)
    mesh = build_mesh({name: shape[name] for name in names})
    num_parts = math.prod(size for name, size in shape.items() if name in DATA_AXES)
    assert mesh.data_size == num_parts
    assert [mesh.data_ranks[rank] for rank in mesh.collecting_ranks] == list(range(num_parts))
    assert {len(mesh.ranks_of(part)) for part in range(num_parts)} == {mesh.size // num_parts}
    at = coordinates({name: shape[name] for name in names})
    for name in set(names) & set(FIRST_COLLECTS):
        assert {at[name][rank] for rank in mesh.collecting_ranks} == {0}
    if "pipeline" in at:
        assert {at["pipeline"][rank] for rank in mesh.collecting_ranks} == {shape["pipeline"] - 1}


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: build_mesh({"tenosr": 2}), "axis 'tenosr'"),
        (lambda: build_mesh({"data": 0}), "size 0"),
        (lambda: build_mesh({}), "without axes"),
        (lambda: Mesh((0, 0), (True, True)), r"\[0, 0\] are collected"),
        (lambda: Mesh((0, 2), (True, True)), "data-parallel ranks"),
        (lambda: Mesh((0, 1), (True, False)), r"\[0\] are collected"),
        (lambda: Mesh((0, 1), (True,)), "1 collecting flags"),
    ],
)
def test_a_mesh_that_loses_or_repeats_results_is_refused(build: Any, what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        build()


def test_an_unknown_axis_names_the_nearest() -> None:
    with pytest.raises(InvalidValueError) as caught:
        build_mesh({"tenosr": 2})
    assert caught.value.remedy == "did you mean 'tensor'?"
