"""Environment variables: Ray's addresses, each tried; the ranks of a launcher; and those that move bits."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from harness.bits.files import open_regular
from harness.bits.levels import MOVE_BITS
from harness.bits.redaction import redact_fields, redact_text
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding

CONNECT_S = 1.0
RAY_PORTS = {"ray": 10001, "http": 80, "https": 443}
"""The port of an address that names none, by its scheme."""
ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_REDIS_ADDRESS")
CURRENT_CLUSTER = "ray/ray_current_cluster"
"""Below RAY_TMPDIR, TMPDIR or /tmp: where `ray start` notes the address that ray.init then joins."""
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR")
TUNED = "torch uses the kernel it measures as fastest: two runs may use different ones"
LOWERED = {
    "NVIDIA_TF32_OVERRIDE": (
        "1",
        "every float32 matrix product keeps only 10 mantissa bits of its inputs, regardless of the code",
    ),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1", "float32 products use TF32, although torch's default does not"),
    "ONEDNN_DEFAULT_FPMATH_MODE": ("BF16 F16 TF32 ANY", "float32 products on the CPU use fewer bits"),
    "DNNL_DEFAULT_FPMATH_MODE": ("BF16 F16 TF32 ANY", "float32 products on the CPU use fewer bits"),
    "PYTORCH_TUNABLEOP_ENABLED": ("1", TUNED),
    "TORCHINDUCTOR_MAX_AUTOTUNE": ("1", TUNED),
    "OMP_DYNAMIC": ("TRUE", "the number of threads changes during a run, and sums change with it"),
}
"""Values (in capitals) that cost accuracy or repeatability, and how."""


class EnvironmentCode(MachineCode):
    """Codes of environment variables."""

    # fmt: off
    RAY_NO_ADDRESS = "ray_no_address", BROKEN, "{check}", """
        {said}, which is not HOST:PORT
        breaks: ray.init refuses it"""
    RAY_DEAD = "ray_dead", BROKEN, "{check}", """
        {said}: {problem}
        breaks: ray.init waits there for over two minutes, then fails"""
    RAY_JOINED = "ray_joined", WARNING, "{check}", """
        {said}: it answers
        breaks: ray.init outside of `rlharness run` joins that cluster instead of starting its own"""
    RAY_NO_CLUSTER = "ray_no_cluster", BROKEN, "RAY_ADDRESS", """
        RAY_ADDRESS=auto, and no cluster is recorded in {path}
        breaks: ray.init finds no cluster to join, and fails"""
    RAY = "ray_variables", FINE, "Ray", "{variables}"
    RANK_INHERITED = "rank_inherited", WARNING, "ranks", """
        {variables}
        breaks: a test that calls init_process_group waits for all of these ranks
        remedy: {fix}"""
    NO_RANK = "no_rank", FINE, "ranks", "{variables}"
    MOVES_BITS = "moves_bits", WARNING, "{name}", """
        {name}={value}
        breaks: {effect}"""
    BITS = "bits", FINE, "bits", "{variables}"
    # fmt: on


# ------------------------------------------------------------------------------------------------------------------ Ray


def check_ray(host: Host) -> Iterator[MachineFinding]:
    """Every address that Ray would take from the environment or from its file, tried; then its other variables."""
    environ = host.environ
    values = {name: environ[name] for name in ADDRESSES if name in environ}
    directory = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp"
    path = os.path.join(os.path.abspath(directory), CURRENT_CLUSTER)
    noted = ""
    with suppress(OSError), open_regular(path, follows_links=True) as file:  # anybody may have put it there
        noted = file.read(300).decode("utf-8", "replace").strip()
    if noted:
        values[path] = noted
    for name, value in values.items():
        if name == "RAY_ADDRESS" and value == "auto" and not noted:
            yield EnvironmentCode.RAY_NO_CLUSTER(path=path, unsets=(name,))
        elif value not in ("", "auto", "local"):
            yield _classify_address(name, value)
    others = sorted(name for name in environ if name.startswith("RAY_") and name not in ADDRESSES)
    shown = redact_fields({name: environ[name] for name in others})
    none = f"none of its {'other ' if any(name in environ for name in ADDRESSES) else ''}variables is set"
    measured = " ".join(f"{name}={value}" for name, value in shown.items())
    yield EnvironmentCode.RAY(variables=f"set: {measured}" if others else none)


def _classify_address(name: str, value: str) -> MachineFinding:
    """Try one address of the variable or file `name`."""
    fix: dict[str, Any] = {"unsets": (name,)} if not name.startswith("/") else {"remedy": f"ray stop; rm -f {name}"}
    said = f"{name}={redact_text(value)}" if not name.startswith("/") else f"{name} says {redact_text(value)}"
    check = "ray_current_cluster" if name.startswith("/") else name
    named: dict[str, Any] = {"check": check, "said": said}
    if (address := endpoint(value)) is None:
        return EnvironmentCode.RAY_NO_ADDRESS(**named, **fix)
    try:
        socket.create_connection(address, timeout=CONNECT_S).close()
    except OSError as error:
        problem = error.strerror.lower() if error.strerror else str(error)
        problem = f"no answer within {CONNECT_S:g} s" if isinstance(error, TimeoutError) else problem
        return EnvironmentCode.RAY_DEAD(**named, **fix, problem=problem)
    return EnvironmentCode.RAY_JOINED(**named, **fix)


def endpoint(address: str) -> tuple[str, int] | None:
    """Host and port that an address of Ray's names; None where it names none."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or RAY_PORTS.get(parts.scheme)
    except ValueError:  # a port that is no number
        return None
    return (parts.hostname, port) if parts.hostname and port else None


# ---------------------------------------------------------------------------------------------------------------- ranks


def check_ranks(host: Host) -> Iterator[MachineFinding]:
    """Whether this process takes itself for one rank of many."""
    names = tuple(name for name in RANKS if name in host.environ)
    found = " ".join(f"{name}={host.environ[name]}" for name in names)
    if "RANK" in names and host.environ.get("WORLD_SIZE", "1") != "1":
        yield EnvironmentCode.RANK_INHERITED(variables=found, unsets=names)
    else:
        yield EnvironmentCode.NO_RANK(variables=f"set: {found}" if found else "no variable gives this process a rank")


# ----------------------------------------------------------------------------------------------------------------- bits


def check_bits(host: Host) -> Iterator[MachineFinding]:
    """Check the variables that move the bits of a run: a finding for each harmful value, and one for the others."""
    environ = host.environ
    harmful = {
        name: effect for name, (values, effect) in LOWERED.items() if environ.get(name, "").upper() in values.split()
    }
    for name, effect in harmful.items():
        yield EnvironmentCode.MOVES_BITS(name=name, value=environ[name], effect=effect, unsets=(name,))
    others = [f"{name}={environ[name]}" for name in sorted(MOVE_BITS & environ.keys() - harmful.keys())]
    moved = f"a run's bits depend on these variables: {' '.join(others)}"
    yield EnvironmentCode.BITS(variables=moved if others else "no variable that moves the bits of a run is set")
