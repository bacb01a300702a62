"""Which layer is named, from what each rank told: the judgement alone, without processes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.findings import Severity
from harness.doctor.distributed import DOES, WALK_S, LayerCode, RankStory, classify_ranks, innermost, telling_lines
from harness.doctor.probe import LIMITS_S
from harness.machine.findings import MachineFinding
from tests.support.finding_checks import sound

KEYS = ("store", "gloo", "nccl", "collective")
MET = (
    "host:7:9 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "host:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init START\n"
)
TREES = MET + "host:7:9 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1\n"
LAZY = TREES + "host:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init COMPLETE\n"
VIA = LAZY + "host:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
RINGS = VIA + "host:7:9 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
STACKS = """Process 12: python -m harness.doctor.probe
Thread 12 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3210)
    walk_rank (harness/doctor/probe.py:99)
    main (harness/doctor/probe.py:130)
Thread 14 (idle): "pt_gloo_runloop"
    0x7f (libtorch_cpu.so)
"""


def story(number: int, num_passed: int, *, stuck: bool = False, error: str = "", log: str = "") -> RankStory:
    """A rank that has passed the first `num_passed` layers, then hung or failed."""
    here = KEYS[num_passed] if num_passed < len(KEYS) else ""
    return RankStory(
        name=f"rank {number}",
        passed=dict.fromkeys(KEYS[:num_passed], 0.5),
        failed={here: error} if error else {},
        stuck=here if stuck else "",
        log=log,
    )


def classified(ranks: list[RankStory], *, with_nccl: bool = False, address: str = "") -> list[MachineFinding]:
    return sound(classify_ranks(ranks, with_nccl=with_nccl, address=address))


@pytest.mark.parametrize(
    ("num_passed", "log", "layer"),
    [
        (0, "", LayerCode.STORE),
        (1, "", LayerCode.GLOO),
        (2, "", LayerCode.BOOTSTRAP),
        (2, MET, LayerCode.BOOTSTRAP),
        (2, TREES, LayerCode.TRANSPORT),
        (2, VIA, LayerCode.TRANSPORT),
        (3, LAZY, LayerCode.TRANSPORT),
        (3, VIA, LayerCode.TRANSPORT),
        (3, RINGS, LayerCode.COLLECTIVE),
        (3, "", LayerCode.COLLECTIVE),
    ],
)
def test_a_hang_is_named_at_its_layer(num_passed: int, log: str, layer: LayerCode) -> None:
    *before, last = classified([story(n, num_passed, stuck=True, log=log) for n in (0, 1)], with_nccl=True)
    assert (last.code, last.severity) == (layer, Severity.BROKEN)
    assert last.measured == f"rank 0, rank 1 hung while {DOES[KEYS[num_passed]]} (2 ranks)"
    assert {finding.severity for finding in before} <= {Severity.FINE}


def test_a_healthy_bootstrap_is_a_line_per_layer() -> None:
    findings = classified([story(n, 4, log=RINGS) for n in range(3)], with_nccl=True)
    assert [each.check for each in findings] == [
        "store",
        "Gloo",
        "NCCL bootstrap",
        "NCCL transport",
        "first collective",
    ]
    assert {each.measured for each in findings} == {"3 ranks in 0.50 s"}
    ranks = [replace(story(n, 4), passed=dict.fromkeys(("store", "gloo", "collective"), 0.1)) for n in (0, 1)]
    assert [each.check for each in classified(ranks)] == ["store", "Gloo", "first collective"]


def test_the_rank_that_fails_is_told_apart_from_those_that_wait_for_it() -> None:
    ranks = [story(0, 1, stuck=True), story(1, 1, error="RuntimeError: no route\n."), story(2, 0, error="OSError: x")]
    (store,) = classified(ranks, address="10.0.0.1:29500")
    assert store.measured == f"rank 2 failed while {DOES['store']} at 10.0.0.1:29500: OSError: x (3 ranks)"
    gloo = classified(ranks[:2])[-1]
    assert gloo.measured == (
        f"rank 1 failed while {DOES['gloo']}: RuntimeError: no route; rank 0 still waited there (2 ranks)"
    )


def test_what_cannot_start_is_no_layer() -> None:
    broken = replace(story(1, 0), is_ready=False, log="Traceback\nModuleNotFoundError: No module named 'torch'")
    waiting = replace(broken, name="rank 0", log="")
    (finding,) = classified([waiting, broken], with_nccl=True)
    assert finding.code is LayerCode.START
    assert finding.measured == "rank 0, rank 1: ModuleNotFoundError: No module named 'torch'"


def test_details_are_the_end_of_the_log_and_where_the_process_stood() -> None:
    log = "\n".join(f"connection {n} refused" for n in range(100)) + "\ngood bye"
    hung = [replace(story(n, 1, stuck=True, log=log), stacks=STACKS) for n in (0, 1)]
    details = classified(hung)[-1].details
    assert details[5] == "rank 0: connection 99 refused"
    assert details[6] == "rank 0 stood in all_reduce (torch/distributed/distributed_c10d.py:3210)"
    assert len(details) == 16
    assert telling_lines("hello\ngood bye\n\n") == ["good bye"]
    assert telling_lines("") == []


def test_the_innermost_frames_are_those_of_the_main_thread() -> None:
    assert innermost(STACKS) == [
        "all_reduce (torch/distributed/distributed_c10d.py:3210)",
        "walk_rank (harness/doctor/probe.py:99)",
    ]
    assert innermost("nothing of the kind") == []


@given(passed=st.lists(st.integers(0, 4), min_size=2, max_size=5), with_hang=st.booleans())
def test_the_layer_named_is_the_first_that_not_all_have_passed(passed: list[int], with_hang: bool) -> None:
    ranks = [story(n, num, stuck=with_hang, error="" if with_hang else "E: x") for n, num in enumerate(passed)]
    findings = classified(ranks, with_nccl=True)
    broken = [finding for finding in findings if finding.severity is Severity.BROKEN]
    if min(passed) == 4:
        assert broken == []
        return
    codes = (LayerCode.STORE, LayerCode.GLOO, LayerCode.BOOTSTRAP, LayerCode.COLLECTIVE)
    assert [finding.code for finding in broken] == [codes[min(passed)]]
    assert findings[-1] is broken[0]
    assert all(f"rank {n}" in broken[0].measured for n, num in enumerate(passed) if num == min(passed))


def test_of_many_telling_lines_the_first_and_the_last_are_shown() -> None:
    """The first has the interface that is not there; what NCCL and torch report after it are consequences."""
    log = "\n".join(f"NCCL WARN socket {number}" for number in range(20))
    assert [line.rpartition(" ")[2] for line in telling_lines(log)] == ["0", "1", "16", "17", "18", "19"]


def test_the_limit_of_a_process_is_more_than_those_of_its_layers() -> None:
    assert sum(LIMITS_S.values()) < WALK_S
