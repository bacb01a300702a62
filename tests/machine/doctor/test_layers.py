"""Which layer is named, from the answers of each rank, and which remedies are tried: the rules alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.bits.findings import Severity
from harness.doctor import distributed
from harness.doctor.distributed import (
    LAYERS,
    Bootstrap,
    LayerCode,
    classify_layer,
    find_layer,
    innermost,
    telling_lines,
)
from harness.doctor.host import Probes
from harness.machine.findings import MachineFinding
from harness.process.children import Answer
from tests.support.finding_checks import sound

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


LATE = Answer("late", "still running after 5 s")


def classified(code: LayerCode, *answers: Answer, log: str = "", stacks: str = "", address: str = "") -> MachineFinding:
    by_rank = {f"rank {number}": answer for number, answer in enumerate(answers)}
    logs, all_stacks = dict.fromkeys(by_rank, log), dict.fromkeys(by_rank, stacks)
    (finding,) = sound([classify_layer(code, by_rank, logs, all_stacks, address=address)])
    return finding


@pytest.mark.parametrize(
    ("code", "log", "layer"),
    [
        (LayerCode.STORE, "", LayerCode.STORE),
        (LayerCode.GLOO, "", LayerCode.GLOO),
        (LayerCode.BOOTSTRAP, "", LayerCode.BOOTSTRAP),
        (LayerCode.BOOTSTRAP, MET, LayerCode.BOOTSTRAP),
        (LayerCode.BOOTSTRAP, TREES, LayerCode.TRANSPORT),
        (LayerCode.BOOTSTRAP, VIA, LayerCode.TRANSPORT),
        (LayerCode.COLLECTIVE, LAZY, LayerCode.TRANSPORT),
        (LayerCode.COLLECTIVE, VIA, LayerCode.TRANSPORT),
        (LayerCode.COLLECTIVE, RINGS, LayerCode.COLLECTIVE),
        (LayerCode.COLLECTIVE, "", LayerCode.COLLECTIVE),
    ],
)
def test_a_hang_is_named_at_its_layer(code: LayerCode, log: str, layer: LayerCode) -> None:
    finding = classified(code, LATE, LATE, log=log)
    assert (finding.code, finding.severity) == (layer, Severity.BROKEN)
    assert finding.measured == f"rank 0, rank 1 hung while {LAYERS[code].does} (2 ranks)"


def test_the_rank_that_fails_is_distinguished_from_those_that_wait_for_it() -> None:
    failed, ok = Answer("failed", "RuntimeError: no route\n."), Answer("ok", None)
    store = classified(LayerCode.STORE, ok, ok, failed, address="10.0.0.1:29500")
    does = LAYERS[LayerCode.STORE].does
    assert store.measured == f"rank 2 failed while {does} at 10.0.0.1:29500: RuntimeError: no route (3 ranks)"
    gloo = classified(LayerCode.GLOO, LATE, failed, Answer("lost", "died of SIGSEGV"))
    does = LAYERS[LayerCode.GLOO].does
    assert gloo.measured == (
        f"rank 1 failed while {does}: RuntimeError: no route; rank 2 failed while {does}: it died of SIGSEGV; "
        "rank 0 still waited there (3 ranks)"
    )


def test_what_cannot_start_is_no_layer() -> None:
    finding = classified(LayerCode.START, *[Answer("failed", "ModuleNotFoundError: No module named 'torch'")] * 2)
    assert finding.code is LayerCode.START
    assert "rank 0, rank 1 failed while importing torch: ModuleNotFoundError" in finding.measured


def test_details_are_the_end_of_the_log_and_where_the_process_stood() -> None:
    log = "\n".join(f"connection {n} refused" for n in range(100)) + "\ngood bye"
    details = classified(LayerCode.GLOO, LATE, LATE, log=log, stacks=STACKS).details
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


def test_of_many_telling_lines_the_first_and_the_last_are_shown() -> None:
    """The first has the interface that is not there; what NCCL and torch report after it are consequences."""
    log = "\n".join(f"NCCL WARN socket {number}" for number in range(20))
    assert [line.rpartition(" ")[2] for line in telling_lines(log)] == ["0", "1", "16", "17", "18", "19"]


# ---- remedies ----


@pytest.mark.parametrize(
    ("environ", "tried"),
    [
        ({}, []),
        ({"MASTER_ADDR": "127.0.0.1"}, []),
        ({"MASTER_ADDR": "beta"}, ["export MASTER_ADDR=127.0.0.1"]),
        ({"MASTER_PORT": "29500"}, ["unset MASTER_PORT"]),
        (
            {"MASTER_ADDR": "beta", "MASTER_PORT": "29500"},
            ["unset MASTER_PORT", "export MASTER_ADDR=127.0.0.1", "export MASTER_ADDR=127.0.0.1; unset MASTER_PORT"],
        ),
    ],
)
@pytest.mark.parametrize("does_help", [False, True])
def test_only_what_would_change_something_is_tried(
    environ: dict[str, str], tried: list[str], *, does_help: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, said = classified(LayerCode.STORE, Answer("failed", "RuntimeError: no route")), list[str]()

    def try_ranks(bootstrap: Bootstrap, given: Mapping[str, str]) -> Iterator[MachineFinding]:
        yield LayerCode.PASSED(layer="store", measured="2 ranks") if does_help and given != environ else broken

    monkeypatch.setattr(distributed, "try_ranks", try_ranks)
    store, *others = find_layer(Bootstrap(2, "gloo", environ, Probes(str(tmp_path), environ), said.append))
    assert [other.check for other in others] == ["network"] * len(others)
    shown = tried[:1] if does_help else tried
    assert said == [f"store: {broken.measured}", *(f"store: trying {settings}" for settings in shown)]
    if shown and does_help:
        assert store.remedy == f"{shown[0]}   # tried: it passes this layer"
        assert store.fix == shown[0]
    else:
        assert (store.exports, store.unsets) == ({}, ()), "nothing has helped, so nothing is recommended"
        assert "MASTER_ADDR" in store.remedy
