"""Variables that send a program to other machines: Ray's addresses, each tried for real; and those that move bits."""

import os
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from harness.bits.files import open_regular
from harness.bits.redaction import redact_fields, redact_text
from harness.doctor.bit_variables import check_bit_variables, check_hash_seed
from harness.doctor.host import Host
from harness.machine.fan_out import fan_out
from harness.machine.findings import Finding, Severity
from harness.process.daemon_thread import in_daemon_thread

CONNECT_S = 1.0
LOCAL = "local"
RAY_PORTS = {"ray": 10001, "http": 80, "https": 443}
"""The port of an address that names none, by its scheme."""
ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_REDIS_ADDRESS")
CURRENT_CLUSTER = "ray/ray_current_cluster"
"""Below RAY_TMPDIR, TMPDIR or /tmp: where `ray start` notes the address that ray.init then joins."""


async def inspect_ray(host: Host) -> Sequence[Finding]:
    """Every address that Ray would take from the environment or from its file, tried; then its other variables."""
    values = {name: host.environ[name] for name in ADDRESSES if name in host.environ}
    path = _current_cluster_file(host.environ)
    noted = await in_daemon_thread(lambda: _read(path), limit_s=CONNECT_S)
    if noted:
        values[path] = noted
    endpoints = {name: found for name, value in values.items() if (found := endpoint(value))}
    answers = await fan_out(_try, endpoints.values(), limit=len(endpoints)) if endpoints else []
    dead = {name: answer for name, answer in zip(endpoints, answers, strict=True) if answer}
    findings = [classify_address(name, value, dead.get(name, "")) for name, value in values.items()]
    if host.environ.get("RAY_ADDRESS") == "auto" and not noted:
        measured = f"RAY_ADDRESS=auto, and no cluster is recorded in {path}"
        breaks = "ray.init finds no cluster to join, and fails"
        findings[0] = Finding(
            "RAY_ADDRESS", Severity.BROKEN, measured, breaks, "unset RAY_ADDRESS", unsets=("RAY_ADDRESS",)
        )
    return [*findings, check_ray_variables(host.environ)]


async def inspect_bits(host: Host) -> Sequence[Finding]:
    """The hash seed, and every variable that moves bits."""
    return [check_hash_seed(host.environ), *check_bit_variables(host.environ)]


def endpoint(address: str) -> tuple[str, int] | None:
    """Host and port that an address of Ray's names; None where it names none (auto, local, nothing at all)."""
    if address in ("", "auto", LOCAL):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or RAY_PORTS.get(parts.scheme)
    except ValueError:  # a port that is no number
        return None
    return (parts.hostname, port) if parts.hostname and port else None


def classify_address(name: str, value: str, dead: str) -> Finding:
    """Check one address of the variable or file `name`; `dead` is the reason why it does not answer."""
    is_file = name.startswith("/")
    label = "ray_current_cluster" if is_file else name
    remedy, unsets = (f"ray stop; rm -f {name}", ()) if is_file else (f"unset {name}", (name,))
    shown = redact_text(value)
    said = f"{name} says {shown}" if is_file else f"{name}={shown}"
    if value == "":
        breaks = "it means 'no cluster', but older versions of Ray hang on it"
        return Finding(label, Severity.WARNING, f"{name} is empty", breaks, remedy, unsets=unsets)
    if value in ("auto", LOCAL):
        return Finding(label, Severity.FINE, said)
    if endpoint(value) is None:
        breaks = "ray.init refuses it"
        return Finding(label, Severity.BROKEN, f"{said}, which is not HOST:PORT", breaks, remedy, unsets=unsets)
    if dead:
        breaks = "ray.init waits there for over two minutes, then fails"
        return Finding(label, Severity.BROKEN, f"{said}: {dead}", breaks, remedy, unsets=unsets)
    breaks = "ray.init outside of `rlharness run` joins that cluster instead of starting its own"
    return Finding(label, Severity.WARNING, f"{said}: it answers", breaks, remedy, unsets=unsets)


def check_ray_variables(environ: Mapping[str, str]) -> Finding:
    """Ray's other variables, which a Ray that is started here takes over."""
    others = sorted(name for name in environ if name.startswith("RAY_") and name not in ADDRESSES)
    shown = redact_fields({name: environ[name] for name in others})
    measured = " ".join(f"{name}={value}" for name, value in shown.items())
    none = f"none of its {'other ' if any(name in environ for name in ADDRESSES) else ''}variables is set"
    return Finding("Ray", Severity.FINE, f"set: {measured}" if others else none)


def _current_cluster_file(environ: Mapping[str, str]) -> str:
    directory = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp"
    return os.path.join(os.path.abspath(directory), CURRENT_CLUSTER)


def _read(path: str) -> str:
    try:
        with open_regular(path, follows_links=True) as file:  # anybody may have put it there
            return file.read(300).decode("utf-8", "replace").strip()
    except OSError:
        return ""


async def _try(address: tuple[str, int]) -> str:
    """Why nobody answers at `address`; empty where somebody takes the connection."""

    def connect() -> str:
        try:
            socket.create_connection(address, timeout=CONNECT_S).close()
        except TimeoutError:
            return f"no answer within {CONNECT_S:g} s"
        except OSError as error:
            return error.strerror.lower() if error.strerror else str(error)
        return ""

    try:
        return await in_daemon_thread(connect, limit_s=2 * CONNECT_S)
    except TimeoutError:  # the name is still being looked up
        return f"no answer within {2 * CONNECT_S:g} s"
