"""The choice of one interface for each host, and the refusal that names the pair."""

import itertools
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import NetworkError
from harness.core.findings import Severity
from harness.machine.network.host_matching import Hosts, Offer, PeerHost, Tried, choose, hosts_findings
from harness.machine.network.interface_rules import Pick

MGMT, DATA = "mgmt", "data"


def made(num_hosts: int, interfaces: dict[str, int], closed: AbstractSet[tuple[int, int, str]] = frozenset()) -> Hosts:
    """Hosts with `interfaces` (speed by name); `closed` are (caller, host, interface) that do not connect."""
    hosts = tuple(
        PeerHost(
            f"node{n}",
            f"token{n}",
            (1000 + n, 0),
            tuple(Offer(name, f"10.{place}.0.{n}", 4, speed) for place, (name, speed) in enumerate(interfaces.items())),
        )
        for n in range(num_hosts)
    )
    tried = tuple(
        Tried(caller, n, offer.address, "no answer within 2 s" if (caller, n, offer.interface) in closed else "")
        for caller in range(num_hosts)
        for n, host in enumerate(hosts)
        for offer in host.offers
    )
    return Hosts(hosts, tried)


def test_the_fastest_interface_that_all_share() -> None:
    hosts = made(3, {MGMT: 1_000, DATA: 100_000})
    assert [offer.interface for offer in choose(hosts)] == [DATA] * 3


def test_the_first_of_equally_fast_ones() -> None:
    assert [offer.interface for offer in choose(made(2, {MGMT: 0, DATA: 0}))] == [MGMT] * 2


def test_an_interface_on_which_one_pair_cannot_talk_is_passed_over() -> None:
    hosts = made(3, {MGMT: 1_000, DATA: 100_000}, {(2, 1, DATA)})
    assert [offer.interface for offer in choose(hosts)] == [MGMT] * 3


def test_an_interface_that_a_host_cannot_reach_itself_on_is_passed_over() -> None:
    hosts = made(2, {MGMT: 1_000, DATA: 100_000}, {(1, 1, DATA)})
    assert [offer.interface for offer in choose(hosts)] == [MGMT] * 2


def test_different_names_where_no_one_serves_all() -> None:
    hosts = made(2, {MGMT: 1_000, DATA: 100_000}, {(1, 0, DATA), (0, 1, MGMT)})
    assert [offer.interface for offer in choose(hosts)] == [MGMT, DATA]


def test_the_refusal_names_the_pair() -> None:
    hosts = made(3, {MGMT: 1, DATA: 1}, {(2, 1, MGMT), (2, 1, DATA)})
    with pytest.raises(NetworkError) as refused:
        choose(hosts)
    assert refused.value.what == (
        "node2 cannot reach node1 on any interface: "
        "10.0.0.1 (mgmt): no answer within 2 s; 10.1.0.1 (data): no answer within 2 s"
    )
    assert refused.value.remedy.startswith("iptables -I INPUT -s 10.0.0.2 -p tcp -j ACCEPT, on node1")
    (finding,) = hosts_findings(hosts, 0, ())
    assert finding.severity is Severity.BROKEN
    assert finding.measured == refused.value.what


def test_every_pair_can_talk_and_yet_there_is_no_choice() -> None:
    hosts = made(3, {MGMT: 1, DATA: 1}, {(1, 0, MGMT), (2, 0, DATA)})
    with pytest.raises(NetworkError, match="no set of one interface") as refused:
        choose(hosts)
    assert "node1 to 10.0.0.0 (mgmt) of node0" in refused.value.what
    assert "node2 to 10.1.0.0 (data) of node0" in refused.value.what


def test_a_host_with_nothing_to_offer() -> None:
    with pytest.raises(NetworkError, match="node0 has only a loopback address"):
        choose(made(2, {}))


def all_reached(*hosts: PeerHost) -> Hosts:
    callers = range(len(hosts))
    return Hosts(hosts, tuple(Tried(c, n, o.address, "") for c in callers for n in callers for o in hosts[n].offers))


def test_one_address_family_for_all() -> None:
    both = (Offer("eth0", "10.0.0.1", 4), Offer("eth1", "fd00::1", 6))
    hosts = all_reached(PeerHost("a", "", (1, 1), both), PeerHost("b", "", (1, 1), (Offer("eth0", "fd00::2", 6),)))
    assert [offer.address for offer in choose(hosts)] == ["fd00::1", "fd00::2"]


def test_what_nobody_has_tried_is_not_chosen() -> None:
    hosts = made(2, {MGMT: 1})
    with pytest.raises(NetworkError, match="no set of one interface"):
        choose(Hosts(hosts.hosts, hosts.tried[:-1]))


def test_a_name_that_begins_another_is_made_exact_for_nccl() -> None:
    offers = (Offer("eth1", "10.0.0.1", 4), Offer("eth10", "10.1.0.1", 4))
    hosts = all_reached(PeerHost("a", "", (1, 0), offers), PeerHost("b", "", (1, 0), (Offer("eth1", "10.0.0.2", 4),)))
    (fine,) = hosts_findings(hosts, 0, ())
    assert fine.details == ("here: export NCCL_SOCKET_IFNAME==eth1 GLOO_SOCKET_IFNAME=eth1",)
    (fine,) = hosts_findings(hosts, 1, ())
    assert fine.exports == (("NCCL_SOCKET_IFNAME", "eth1"), ("GLOO_SOCKET_IFNAME", "eth1"))


def test_what_the_libraries_would_pick_elsewhere_is_said_once() -> None:
    hosts = made(2, {MGMT: 1, DATA: 1}, {(1, 0, MGMT)})
    rules = [
        Pick("NCCL", "NCCL_SOCKET_IFNAME", MGMT, "10.0.0.0", "first"),
        Pick("Gloo", "GLOO_SOCKET_IFNAME", DATA, "10.1.0.0", "name"),
        Pick("Ray", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", MGMT, "10.0.0.0", "route"),
    ]
    fine, wrong = hosts_findings(hosts, 0, rules)
    assert (fine.severity, wrong.severity) == (Severity.FINE, Severity.BROKEN)
    assert fine.measured == "every pair of 2 hosts can talk: node0 data 10.1.0.0, node1 data 10.1.0.1"
    assert wrong.measured == "NCCL and Ray would use 10.0.0.0 (mgmt): node1: no answer within 2 s"
    assert wrong.exports == (("NCCL_SOCKET_IFNAME", DATA),)
    assert wrong.remedy == "export NCCL_SOCKET_IFNAME=data, and ray start --node-ip-address=10.1.0.0"


def test_loopback_between_hosts_is_said() -> None:
    loopback = Pick("NCCL", "NCCL_SOCKET_IFNAME", "lo", "127.0.0.1", "NCCL_SOCKET_IFNAME=lo", "lo")
    _, wrong = hosts_findings(made(2, {DATA: 1}), 1, [loopback])
    assert wrong.measured == "NCCL would use 127.0.0.1 (lo): no other host can reach it"


@settings(derandomize=True)
@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_a_choice_lets_every_pair_talk_and_a_refusal_is_right(
    num_hosts: int, num_interfaces: int, data: st.DataObject
) -> None:
    names = [f"eth{n}" for n in range(num_interfaces)]
    everything = list(itertools.product(range(num_hosts), range(num_hosts), names))
    closed = set(data.draw(st.lists(st.sampled_from(everything), unique=True, max_size=len(everything))))
    hosts = made(num_hosts, {name: data.draw(st.sampled_from([0, 1, 100])) for name in names}, closed)
    possible = [
        choice
        for choice in itertools.product(names, repeat=num_hosts)
        if not any((caller, n, choice[n]) in closed for caller in range(num_hosts) for n in range(num_hosts))
    ]
    try:
        chosen = tuple(offer.interface for offer in choose(hosts))
    except NetworkError:
        assert possible == []
    else:
        assert chosen in possible
        if any(len(set(choice)) == 1 for choice in possible):
            assert len(set(chosen)) == 1
