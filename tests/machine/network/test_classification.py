"""When loopback is pinned, when not, and what is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.findings import Severity
from harness.machine.network.interfaces import GLOO_VARIABLE, NCCL_VARIABLE, RAY_VARIABLE, HostNetwork
from harness.machine.network.preflight import classify_network, why_several_nodes
from tests.machine.network.machines import interface, network, reached

ALL_PINS = {NCCL_VARIABLE: "lo", GLOO_VARIABLE: "lo", RAY_VARIABLE: "0"}
BOND = interface("bond0", "10.0.0.1/24")
ETH1 = interface("eth1", "10.1.0.1/24")


def bonded(name: str = "10.0.0.1") -> HostNetwork:
    """A host whose route to the outside leaves by bond0, and whose own name resolves to `name`."""
    return network(BOND, ETH1, resolved={"node7": (name,)}, outgoing=("10.0.0.1",))


def severities(host: HostNetwork, setting: dict[str, str], *silent: str) -> list[Severity]:
    judged = classify_network(host, setting, reached(host, *silent))
    return [finding.severity for finding in judged.findings]


def test_a_host_that_reaches_itself_is_left_alone() -> None:
    host = bonded()
    judged = classify_network(host, {}, reached(host))
    assert judged.pins == {}
    (finding,) = judged.findings
    assert finding.severity is Severity.FINE
    assert "NCCL bond0 10.0.0.1, Gloo bond0 10.0.0.1, Ray bond0 10.0.0.1" in finding.measured


def test_a_host_that_does_not_is_pinned_to_loopback() -> None:
    host = bonded()
    judged = classify_network(host, {}, reached(host, "10.0.0.1"))
    assert judged.pins == ALL_PINS
    (finding,) = judged.findings
    assert finding.severity is Severity.BROKEN
    assert dict(finding.exports) == ALL_PINS
    assert finding.remedy == "export NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
    assert finding.breaks.startswith("NCCL, Gloo and Ray will start there and hang")


def test_one_stuck_library_pins_all_three() -> None:
    host = bonded(name="127.0.1.1")
    assert classify_network(host, {}, reached(host, "10.0.0.1")).pins == ALL_PINS


def test_work_over_several_nodes_is_never_pinned() -> None:
    host = bonded()
    judged = classify_network(host, {}, reached(host, "10.0.0.1"), several_nodes="SLURM_NNODES=4")
    assert judged.pins == {}
    (finding,) = judged.findings
    assert finding.severity is Severity.BROKEN
    assert finding.exports == {}
    assert "SLURM_NNODES=4" in finding.breaks
    assert "the other nodes reach" in finding.remedy


def test_what_the_user_set_is_never_overridden() -> None:
    host = bonded()
    setting = {NCCL_VARIABLE: "eth1", RAY_VARIABLE: "1"}
    judged = classify_network(host, setting, reached(host, "10.0.0.1"))
    assert judged.pins == {GLOO_VARIABLE: "lo"}


def test_what_the_user_set_and_cannot_work_is_said() -> None:
    host = bonded()
    judged = classify_network(host, {NCCL_VARIABLE: "eth7", GLOO_VARIABLE: "bond0"}, reached(host, "10.0.0.1"))
    assert judged.pins == {RAY_VARIABLE: "0"}
    ray, nccl, gloo = judged.findings
    assert (nccl.measured, nccl.unsets) == (
        "NCCL_SOCKET_IFNAME=eth7: no running interface matches 'eth7'",
        (),
    )
    assert nccl.remedy == "export NCCL_SOCKET_IFNAME=lo"
    assert gloo.measured.startswith("GLOO_SOCKET_IFNAME=bond0: this host cannot reach its own address 10.0.0.1 (bond0)")
    assert (gloo.exports, gloo.unsets) == ({GLOO_VARIABLE: "lo"}, ())  # without it Gloo would choose the same
    assert dict(ray.exports) == judged.pins


def test_a_setting_that_is_worse_than_none_is_better_gone() -> None:
    host = bonded()
    (finding,) = classify_network(host, {NCCL_VARIABLE: "eth7"}, reached(host)).findings
    assert (finding.remedy, finding.unsets) == ("unset NCCL_SOCKET_IFNAME", (NCCL_VARIABLE,))
    (finding,) = classify_network(host, {NCCL_VARIABLE: "eth7"}, reached(host), from_files={NCCL_VARIABLE}).findings
    assert (finding.remedy, finding.unsets) == ("remove NCCL_SOCKET_IFNAME from nccl.conf, where NCCL reads it", ())


def test_a_setting_that_cannot_work_over_several_nodes() -> None:
    host = bonded()
    _, nccl = classify_network(
        host, {NCCL_VARIABLE: "bond0"}, reached(host, "10.0.0.1"), several_nodes="NNODES=2"
    ).findings
    assert nccl.measured.startswith("NCCL_SOCKET_IFNAME=bond0")
    assert (nccl.exports, nccl.unsets) == ({}, ())
    assert "the other nodes reach" in nccl.remedy


def test_an_interface_that_is_down_is_no_news() -> None:
    host = network(BOND, interface("eth9", "10.9.0.1/24", is_up=False), outgoing=("10.0.0.1",))
    assert severities(host, {}, "10.9.0.1") == [Severity.FINE]


def test_an_address_that_does_not_answer_and_that_no_library_uses_is_no_news() -> None:
    assert severities(bonded(), {}, "10.1.0.1") == [Severity.FINE]


def test_without_loopback_nothing_is_pinned_to_it() -> None:
    host = bonded()
    judged = classify_network(host, {}, reached(host, "10.0.0.1", "127.0.0.1", "::1"))
    assert judged.pins == {}
    assert judged.findings[0].remedy == "ip link set lo up"


def test_a_resolver_that_hangs_is_a_warning() -> None:
    host = network(BOND, resolved={}, outgoing=("10.0.0.1",))
    assert severities(host, {}) == [Severity.WARNING]


def test_what_could_not_be_tried_is_not_called_broken() -> None:
    host = bonded()
    judged = classify_network(host, {}, {})
    assert [finding.severity for finding in judged.findings] == [Severity.WARNING]
    assert judged.pins == {}


ADDRESSES = ("10.0.0.1", "10.1.0.1", "127.0.0.1", "::1")


@settings(derandomize=True)
@given(
    st.sets(st.sampled_from(ADDRESSES)),
    st.fixed_dictionaries(
        {},
        optional={
            NCCL_VARIABLE: st.sampled_from(["lo", "bond0", "eth1", "eth7", "", "^lo"]),
            GLOO_VARIABLE: st.sampled_from(["lo", "bond0", "eth1", "eth7", ""]),
            RAY_VARIABLE: st.sampled_from(["0", "1"]),
        },
    ),
    st.sampled_from(["", "NNODES=2"]),
    st.sampled_from(["10.0.0.1", "10.1.0.1", "127.0.1.1"]),
)
def test_pins_mend_what_they_are_for(silent: set[str], setting: dict[str, str], nodes: str, name: str) -> None:
    host = bonded(name=name)
    answers = reached(host, *silent)
    judged = classify_network(host, setting, answers, several_nodes=nodes)
    assert not (judged.pins and nodes)
    assert not {key for key in judged.pins if len(setting.get(key, "")) > 1 or (key == RAY_VARIABLE and key in setting)}
    again = classify_network(host, setting | dict(judged.pins), answers)
    if judged.pins:
        assert again.pins == {}
    stuck = [pick for pick in again.rules if pick.address in silent and pick.address != "127.0.0.1"]
    if "127.0.0.1" not in silent and not nodes:
        assert [pick for pick in stuck if pick.setting is None] == []
    assert len(judged.findings) == len({(f.measured, f.severity) for f in judged.findings})


# ---- several nodes ----

HOST = network(
    interface("eth0", "10.0.0.1/24"),
    resolved={"node7": ("10.0.0.1",), "me": ("10.0.0.1",), "other": ("10.0.0.2",), "unknown": ()},
)


@pytest.mark.parametrize(
    "environ",
    [
        {"NNODES": "2"},
        {"PET_NNODES": "1:4"},
        {"SLURM_JOB_NUM_NODES": "16"},
        {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        {"MASTER_ADDR": "10.0.0.2"},
        {"MASTER_ADDR": "other"},
        {"MASTER_ADDR": "unknown"},
        {"MASTER_ADDR": "not-resolved-in-time"},
    ],
)
def test_several(environ: dict[str, str]) -> None:
    why = why_several_nodes(environ, HOST)
    name, value = next(iter(environ.items()))
    assert f"{name}={value}" in why


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NNODES": "1", "SLURM_NNODES": "1", "PET_NNODES": "1"},
        {"NNODES": "many"},
        {"WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
        {"MASTER_ADDR": ""},
        *({"MASTER_ADDR": own} for own in ("localhost", "127.0.0.1", "::1", "10.0.0.1", "node7", "me")),
    ],
)
def test_one(environ: dict[str, str]) -> None:
    assert why_several_nodes(environ, HOST) == ""
