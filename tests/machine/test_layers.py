"""Which layer is named, from what each rank told: the judgement alone, without processes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.bootstrap import WALK_S
from harness.doctor.distributed_probe import LIMITS_S
from harness.doctor.layers import (
    BOOTSTRAP,
    COLLECTIVE,
    GLOO,
    PORT_TAKEN,
    RAY,
    STORE,
    TORCH,
    TRANSPORT,
    RankStory,
    for_want_of_a_name,
    innermost,
    telling_lines,
    verdict_of_ray,
    verdicts_of_ranks,
)
from harness.machine.findings import Severity

KEYS = ("store", "gloo", "nccl", "collective")
MET = (
    "host:7:9 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "host:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init START\n"
)
TREES = MET + "host:7:9 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1\n"
LAZY = TREES + "host:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init COMPLETE\n"
VIA = LAZY + "host:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
RINGS = VIA + "host:7:9 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
STACKS = """Process 12: python -m harness.doctor.distributed_probe
Thread 12 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3210)
    walk_rank (harness/doctor/distributed_probe.py:99)
    main (harness/doctor/distributed_probe.py:130)
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


@pytest.mark.parametrize(
    ("num_passed", "log", "layer"),
    [
        (0, "", STORE),
        (1, "", GLOO),
        (2, "", BOOTSTRAP),
        (2, MET, BOOTSTRAP),
        (2, TREES, TRANSPORT),
        (2, VIA, TRANSPORT),
        (3, LAZY, TRANSPORT),
        (3, VIA, TRANSPORT),
        (3, RINGS, COLLECTIVE),
        (3, "", COLLECTIVE),
    ],
)
def test_a_hang_is_named_at_its_layer(num_passed: int, log: str, layer: object) -> None:
    *before, last = verdicts_of_ranks([story(n, num_passed, stuck=True, log=log) for n in (0, 1)], with_nccl=True)
    assert last.layer is layer
    assert last.severity is Severity.BROKEN
    assert last.measured == f"rank 0, rank 1 hung while {last.layer.does} (2 ranks)"
    assert {verdict.severity for verdict in before} <= {Severity.FINE}


def test_a_healthy_bootstrap_is_a_line_per_layer() -> None:
    verdicts = verdicts_of_ranks([story(n, 4, log=RINGS) for n in range(3)], with_nccl=True)
    assert [verdict.layer for verdict in verdicts] == [STORE, GLOO, BOOTSTRAP, TRANSPORT, COLLECTIVE]
    assert {verdict.finding().measured for verdict in verdicts} == {"3 ranks in 0.50 s"}
    assert {verdict.finding().breaks for verdict in verdicts} == {""}


def test_without_nccl_there_are_three_layers() -> None:
    ranks = [replace(story(n, 4), passed=dict.fromkeys(("store", "gloo", "collective"), 0.1)) for n in (0, 1)]
    assert [verdict.layer for verdict in verdicts_of_ranks(ranks, with_nccl=False)] == [STORE, GLOO, COLLECTIVE]


def test_the_rank_that_fails_is_told_apart_from_those_that_wait_for_it() -> None:
    ranks = [
        story(0, 1, stuck=True),
        story(1, 1, error="RuntimeError: no route\n."),
        story(2, 0, error="OSError: x"),
    ]
    (verdict,) = verdicts_of_ranks(ranks, with_nccl=False)
    assert verdict.measured == f"rank 2 failed while {STORE.does}: OSError: x (3 ranks)"
    verdict = verdicts_of_ranks(ranks[:2], with_nccl=False)[-1]
    assert verdict.measured == (
        f"rank 1 failed while {GLOO.does}: RuntimeError: no route; rank 0 still waited there (2 ranks)"
    )


def test_the_store_is_named_with_its_address() -> None:
    (verdict,) = verdicts_of_ranks([story(n, 0, stuck=True) for n in (0, 1)], with_nccl=False, address="10.0.0.1:29500")
    assert verdict.measured == f"rank 0, rank 1 hung while {STORE.does} at 10.0.0.1:29500 (2 ranks)"
    assert verdict.layer is STORE
    gloo = verdicts_of_ranks([story(n, 1, stuck=True) for n in (0, 1)], with_nccl=False, address="10.0.0.1:29500")[-1]
    assert "10.0.0.1" not in gloo.measured


@pytest.mark.parametrize(
    ("error", "port"),
    [
        ("DistNetworkError: failed to listen. port: 29500, code: -98, name: EADDRINUSE, message: ...", "29500"),
        ("OSError: [Errno 98] Address already in use", "of the store"),
    ],
)
def test_a_store_whose_port_is_taken_is_told_apart(error: str, port: str) -> None:
    (verdict,) = verdicts_of_ranks([story(0, 0, error=error), story(1, 0, stuck=True)], with_nccl=False)
    assert verdict.layer is PORT_TAKEN
    assert verdict.measured.startswith(f"port {port} is taken on this host; rank 0 failed while {STORE.does}: {error}")
    finding = verdict.finding()
    assert finding.check == STORE.name
    assert "ss -ltnp" in finding.remedy, "where no variable mends it"
    (gloo,) = verdicts_of_ranks([story(n, 1, error=error) for n in (0, 1)], with_nccl=False)[1:]
    assert gloo.layer is GLOO, "another layer has no port that one could change"


def test_what_cannot_be_imported_is_no_layer() -> None:
    broken = replace(story(1, 0), is_ready=False, log="Traceback\nModuleNotFoundError: No module named 'torch'")
    (verdict,) = verdicts_of_ranks([broken, broken], with_nccl=True)
    assert verdict.layer is TORCH
    assert "No module named 'torch'" in verdict.measured
    waiting = replace(broken, name="rank 0", log="")
    assert verdicts_of_ranks([waiting, broken], with_nccl=True)[0].measured == (
        "rank 0, rank 1: ModuleNotFoundError: No module named 'torch'"
    )
    ray = verdict_of_ray(replace(broken, log="ImportError: bad ray"))
    assert (ray.layer, ray.severity) == (RAY, Severity.BROKEN)
    assert "bad ray" in ray.measured


def test_details_are_the_end_of_the_log_and_where_the_process_stood() -> None:
    log = "\n".join(f"connection {n} refused" for n in range(100)) + "\ngood bye"
    hung = [replace(story(n, 1, stuck=True, log=log), stacks=STACKS) for n in (0, 1)]
    details = verdicts_of_ranks(hung, with_nccl=False)[-1].finding().details
    assert details[5] == "rank 0: connection 99 refused"
    assert details[6] == "rank 0 stood in all_reduce (torch/distributed/distributed_c10d.py:3210)"
    assert len(details) == 16
    assert telling_lines("hello\ngood bye\n\n") == ["good bye"]
    assert telling_lines("") == []


def test_the_innermost_frames_are_those_of_the_main_thread() -> None:
    assert innermost(STACKS) == [
        "all_reduce (torch/distributed/distributed_c10d.py:3210)",
        "walk_rank (harness/doctor/distributed_probe.py:99)",
    ]
    assert innermost("nothing of the kind") == []


@given(passed=st.lists(st.integers(0, 4), min_size=2, max_size=5), with_hang=st.booleans())
def test_the_layer_named_is_the_first_that_not_all_have_passed(passed: list[int], with_hang: bool) -> None:
    ranks = [story(n, num, stuck=with_hang, error="" if with_hang else "E: x") for n, num in enumerate(passed)]
    verdicts = verdicts_of_ranks(ranks, with_nccl=True)
    broken = [verdict for verdict in verdicts if verdict.severity is Severity.BROKEN]
    if min(passed) == 4:
        assert broken == []
        return
    expected = (STORE, GLOO, BOOTSTRAP, COLLECTIVE)[min(passed)]
    assert [verdict.layer for verdict in broken] == [expected]
    assert verdicts[-1] is broken[0]
    behind = [f"rank {n}" for n, num in enumerate(passed) if num == min(passed)]
    assert all(name in broken[0].measured for name in behind)


def test_a_store_that_comes_up_slowly_is_a_warning_and_not_the_end() -> None:
    log = "[W1] [c10d] The hostname of the client socket cannot be retrieved. err=-3\nFailed to initialize NumPy"
    ranks = [replace(story(n, 4, log=log), passed={"store": 11.2, "gloo": 0.1, "collective": 0.1}) for n in (0, 1)]
    store, *others = (verdict.finding() for verdict in verdicts_of_ranks(ranks, with_nccl=False))
    assert store.severity is Severity.WARNING
    assert "name server" in store.measured
    assert "/etc/resolv.conf" in store.remedy
    assert store.details == tuple(f"rank {n}: {log.partition(chr(10))[0]}" for n in (0, 1))
    assert {finding.severity for finding in others} == {Severity.FINE}
    (stuck,) = verdicts_of_ranks([story(n, 0, stuck=True, log=log) for n in (0, 1)], with_nccl=False)
    assert (stuck.severity, stuck.layer.name) == (Severity.BROKEN, "store")
    assert "/etc/resolv.conf" in stuck.finding().remedy
    timed_out = [story(n, 0, error="DistNetworkError: timed out", log=log) for n in (0, 1)]
    (silent,) = verdicts_of_ranks(timed_out, with_nccl=False)
    assert silent.layer is STORE, "an address that does not answer"


def test_a_hang_that_waits_for_a_name_is_the_resolvers() -> None:
    for num_passed, remedy in ((0, "::ffff:ADDRESS"), (1, "$(hostname)")):
        hang = verdicts_of_ranks([story(n, num_passed, stuck=True) for n in (0, 1)], with_nccl=False)[-1]
        assert hang.is_hang
        named = for_want_of_a_name(hang, "the name of 10.0.0.1")
        assert named.layer.name == hang.layer.name
        assert named.measured == f"{hang.measured}; no name server answers for the name of 10.0.0.1"
        assert named.finding().breaks == "init_process_group, which waits at every start"
        assert remedy in named.finding().remedy
    silent = "[E1] [c10d] The client socket has timed out after 12500ms while trying to connect to (10.0.0.1, 29500)."
    assert not verdicts_of_ranks([story(n, 0, stuck=True, log=silent) for n in (0, 1)], with_nccl=False)[0].is_hang
    assert not verdicts_of_ranks([story(0, 0, error="E: x"), story(1, 0, stuck=True)], with_nccl=False)[-1].is_hang


def test_of_many_telling_lines_the_first_and_the_last_are_shown() -> None:
    """The first has the interface that is not there; what NCCL and torch report after it are consequences."""
    log = "\n".join(f"NCCL WARN socket {number}" for number in range(20))
    assert [line.rpartition(" ")[2] for line in telling_lines(log)] == ["0", "1", "16", "17", "18", "19"]


def test_the_limit_of_a_process_is_more_than_those_of_its_layers() -> None:
    assert sum(limit for layer, limit in LIMITS_S.items() if layer != "ray") < WALK_S
