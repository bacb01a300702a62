"""What NCCL, Gloo and Ray would pick, rule by rule, and rules that hold for every machine."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machine.network.interfaces import (
    GLOO_VARIABLE,
    NCCL_VARIABLE,
    RAY_VARIABLE,
    HostNetwork,
    Interface,
    is_set,
    make_rules,
)
from harness.machine.network.interfaces import gloo_pick as gloo
from harness.machine.network.interfaces import nccl_pick as nccl
from harness.machine.network.interfaces import ray_pick as ray
from tests.machine.network.machines import LO, interface, network

ETH0 = interface("eth0", "10.0.0.1/24", "fd00::1/64")
ETH1 = interface("eth1", "10.1.0.1/24")
IB0 = interface("ib0", "10.9.0.1/24")
DOCKER = interface("docker0", "172.17.0.1/16")
BRIDGE = interface("virbr0", "192.168.122.1/24")
V6_ONLY = interface("eth2", "fd01::1/64")
DOWN = interface("eno1", "10.3.0.1/24", is_up=False)

# ----------------------------------------------------------------------------------------------------------------- NCCL


@pytest.mark.parametrize(
    ("interfaces", "setting", "picked"),
    [
        ((ETH0, ETH1), {}, "eth0 10.0.0.1"),
        ((ETH0, IB0), {}, "ib0 10.9.0.1"),
        ((DOCKER, BRIDGE, ETH1), {}, "eth1 10.1.0.1"),
        ((DOCKER, BRIDGE), {}, "docker0 172.17.0.1"),
        ((BRIDGE,), {}, "lo 127.0.0.1"),
        ((DOWN, ETH1), {}, "eth1 10.1.0.1"),
        ((V6_ONLY, ETH1), {}, "eth1 10.1.0.1"),  # all of IPv4 comes before IPv6
        ((V6_ONLY,), {}, "eth2 fd01::1"),
        ((ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "eth1"}, "eth1 10.1.0.1"),
        ((ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "eth"}, "eth0 10.0.0.1"),
        ((interface("eth10", "10.5.0.1/24"), ETH1), {"NCCL_SOCKET_IFNAME": "eth1"}, "eth10 10.5.0.1"),
        ((interface("eth10", "10.5.0.1/24"), ETH1), {"NCCL_SOCKET_IFNAME": "=eth1"}, "eth1 10.1.0.1"),
        ((ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "^eth0,lo"}, "eth1 10.1.0.1"),
        ((ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "^=eth0,lo"}, "eth1 10.1.0.1"),
        ((ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "ib,eth1:5000"}, "eth1 10.1.0.1"),
        ((ETH0,), {"NCCL_SOCKET_IFNAME": "lo"}, "lo 127.0.0.1"),
        ((ETH0,), {"NCCL_SOCKET_IFNAME": "x"}, "eth0 10.0.0.1"),  # too short to be heeded
        ((ETH0,), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, "eth0 fd00::1"),
        ((ETH0,), {"NCCL_SOCKET_FAMILY": "IPv6"}, "eth0 10.0.0.1"),  # not a word it knows
    ],
)
def test_nccl(interfaces: tuple[Interface, ...], setting: dict[str, str], picked: str) -> None:
    pick = nccl(network(*interfaces), setting)
    assert f"{pick.interface} {pick.address}" == picked
    assert not pick.problem


def test_nccl_reads_16_names_and_no_more() -> None:
    others = ",".join(f"x{n}" for n in range(16))
    assert nccl(network(ETH0), {NCCL_VARIABLE: f"{others},eth0"}).problem
    assert not nccl(network(ETH0), {NCCL_VARIABLE: f"{others[3:]},eth0"}).problem


def test_nccl_never_takes_the_ipv6_address_of_loopback() -> None:
    assert nccl(network(), {"NCCL_SOCKET_FAMILY": "AF_INET6"}).address == ""


def test_nccl_refuses_what_no_running_interface_matches() -> None:
    for setting in ("eth7", "eno1", "^eth,lo,eno"):
        pick = nccl(network(ETH0, DOWN), {NCCL_VARIABLE: setting})
        assert (pick.address, pick.setting) == ("", setting)
        assert repr(setting) in pick.problem


# ----------------------------------------------------------------------------------------------------------------- Gloo


def test_gloo_takes_what_the_hosts_name_resolves_to() -> None:
    host = network(ETH0, resolved={"node7": ("10.44.0.1", "10.0.0.1")})  # the first is not this host's
    assert (gloo(host, {}).interface, gloo(host, {}).address) == ("eth0", "10.0.0.1")
    debian = network(ETH0, resolved={"node7": ("127.0.1.1",)})
    assert (gloo(debian, {}).interface, gloo(debian, {}).address) == ("lo", "127.0.1.1")


def test_gloo_falls_back_to_loopback() -> None:
    for resolved in ({"node7": ()}, {"node7": ("10.44.0.1",)}):
        pick = gloo(network(ETH0, resolved=resolved), {})
        assert (pick.interface, pick.address) == ("lo", "127.0.0.1")


def test_gloo_of_a_host_whose_resolver_hangs_is_not_known() -> None:
    pick = gloo(network(ETH0, resolved={}), {})
    assert pick.address == ""
    assert "did not answer" in pick.why


def test_gloo_as_set() -> None:
    host = network(ETH0, ETH1, interface("wg0"))
    assert gloo(host, {GLOO_VARIABLE: "eth1,eth0"}).address == "10.1.0.1"
    assert gloo(host, {GLOO_VARIABLE: "eth1,eth9"}).problem == "there is no interface named 'eth9'"
    assert gloo(host, {GLOO_VARIABLE: "eth"}).problem == "there is no interface named 'eth'"
    assert gloo(host, {GLOO_VARIABLE: "wg0"}).problem == "the interface wg0 has no address"
    assert gloo(host, {GLOO_VARIABLE: ""}).setting is None


# ------------------------------------------------------------------------------------------------------------------ Ray


def test_ray_takes_the_address_of_the_route_to_the_outside() -> None:
    pick = ray(network(ETH0, ETH1, outgoing=("10.1.0.1", "fd00::1"), resolved={"node7": ("10.0.0.1",)}), {})
    assert (pick.interface, pick.address) == ("eth1", "10.1.0.1")


def test_ray_without_a_route_takes_what_the_hosts_name_resolves_to() -> None:
    pick = ray(network(ETH0, resolved={"node7": ("fd00::1", "10.0.0.1")}), {})
    assert (pick.interface, pick.address) == ("eth0", "10.0.0.1")
    assert ray(network(ETH0), {}).address == "127.0.0.1"


def test_ray_as_set() -> None:
    host = network(ETH0, outgoing=("10.0.0.1",))
    for off in ("0", "false", "no", ""):
        assert ray(host, {RAY_VARIABLE: off}).address == "127.0.0.1"
    for on in ("1", "true", "TRUE"):
        assert ray(host, {RAY_VARIABLE: on}).address == "10.0.0.1"


# ----------------------------------------------------------------------------------------------------- on every machine

NAMES = st.sampled_from(["eth0", "eth1", "ib0", "docker0", "virbr0", "bond0.100", "lo0"])
IPV4 = st.ip_addresses(v=4).map(lambda address: f"{address}/24")
IPV6 = st.ip_addresses(v=6).map(lambda address: f"{address}/64")
INTERFACES = st.lists(
    st.builds(
        lambda name, first, second, is_up: interface(name, *first, *second, is_up=is_up),
        NAMES,
        st.lists(IPV4, max_size=2),
        st.lists(IPV6, max_size=2),
        st.booleans(),
    ),
    unique_by=lambda one: one.name,
    max_size=5,
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        NCCL_VARIABLE: st.one_of(NAMES, st.text(string.ascii_lowercase + "^=,:0", max_size=8)),
        GLOO_VARIABLE: st.one_of(NAMES, st.text(string.ascii_lowercase + ",", max_size=8)),
        RAY_VARIABLE: st.sampled_from(["0", "1", "", "true"]),
        "NCCL_SOCKET_FAMILY": st.sampled_from(["AF_INET", "AF_INET6", "x"]),
    },
)


@settings(derandomize=True)
@given(INTERFACES, SETTINGS)
def test_a_pick_is_an_address_of_its_interface_or_says_what_is_wrong(
    interfaces: list[Interface], setting: dict[str, str]
) -> None:
    host = network(*interfaces)
    for pick in make_rules(host, setting):
        assert pick.setting == (setting[pick.variable] if is_set(pick.variable, setting) else None)
        assert pick.why
        if pick.problem:
            assert pick.address == ""
        elif pick.address == "127.0.0.1":
            assert pick.interface == "lo"
        else:
            (holder,) = [one for one in host.interfaces if one.name == pick.interface]
            assert pick.address in holder.addresses
            assert holder.is_up or pick.library == "Gloo"


@settings(derandomize=True)
@given(INTERFACES, SETTINGS)
def test_nccl_without_docker_is_nccl_with_docker_last(interfaces: list[Interface], setting: dict[str, str]) -> None:
    real = [one for one in interfaces if not one.name.startswith(("docker", "virbr", "lo"))]
    setting = {key: value for key, value in setting.items() if key == "NCCL_SOCKET_FAMILY"}
    with_all, with_real = nccl(network(*interfaces), setting), nccl(network(*real), setting)
    if with_real.interface not in ("lo", ""):
        assert with_all == with_real


def test_an_address_belongs_to_an_interface() -> None:
    host = HostNetwork((LO, ETH0), "node7")
    assert [host.interface_of(text) for text in ("10.0.0.1", "127.0.1.1", "10.0.0.2")] == ["eth0", "lo", ""]
