"""Variables that vLLM reads: those that it does not know, cannot read, or that change its results. Pure but for one."""

import difflib
import re
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from harness.core.findings import Finding, Severity
from harness.core.redaction import redact_fields

PREFIX = "VLLM_"
REMOVED: Mapping[str, str] = {
    "VLLM_USE_V1": "there is only one engine now",
    "VLLM_ATTENTION_BACKEND": "it is the engine argument attention_backend (--attention-backend) now",
}
"""Variables of older versions, with what has replaced them."""
OF_KUBERNETES = re.compile(r"VLLM_(SERVICE_HOST|SERVICE_PORT|PORT_\d)")
"""Variables that Kubernetes sets in every pod beside a service named vllm."""
BATCH_INVARIANT, SEPARATE, HOST_IP, PORT = (
    "VLLM_BATCH_INVARIANT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_HOST_IP",
    "VLLM_PORT",
)
PORTS = range(1, 65_536)


def check_variables(
    environ: Mapping[str, str],
    known: frozenset[str],
    integers: frozenset[str],
    *,
    is_for_cpu: bool,
    own: bool,
) -> list[Finding]:
    """Check the variables of an environment.

    `known` are those that the installed version reads, empty if that is not known; `integers` must be whole numbers.
    `own` says whether VLLM_HOST_IP is an address of this host.
    """
    values = {name: environ[name] for name in sorted(environ) if name.startswith(PREFIX)}
    found: list[Finding] = []
    for name, value in values.items():
        if known and name not in known:
            found.append(_unknown(name, known))
        elif name in integers and not _is_integer(value):
            breaks = "vLLM reads it as a whole number, and fails with a ValueError"
            found.append(_problem(name, environ, Severity.BROKEN, breaks))
        elif finding := _SPECIAL.get(name, _fine)(environ, is_for_cpu, own):
            found.append(finding)
    return found


def shown_variables(environ: Mapping[str, str]) -> str:
    """Say which variables are set, without secrets."""
    shown = redact_fields({name: environ[name] for name in sorted(environ) if name.startswith(PREFIX)})
    words = " ".join(f"{name}={value}" for name, value in shown.items())
    return f"set: {words}" if words else "none of its variables is set"


def is_own_address(environ: Mapping[str, str]) -> bool:
    """Return whether VLLM_HOST_IP is an address that this host can listen at; true if it is not set."""
    address = environ.get(HOST_IP, "")
    if not address:
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as listener:
            listener.bind((address, 0))
    except OSError:
        return False
    return True


def _unknown(name: str, known: frozenset[str]) -> Finding:
    if OF_KUBERNETES.match(name):
        breaks = "vLLM warns of it, and reads VLLM_PORT of the same service as its port: its engine does not start"
        remedy = f"enableServiceLinks: false in the pod, or another name for the service; unset {name}"
        return Finding(
            name, Severity.WARNING, f"{name} is set by Kubernetes for a service named vllm", breaks, remedy,
            unsets=(name,),
        )  # fmt: skip
    if name in REMOVED:
        breaks = f"it has no effect: {REMOVED[name]}"
    else:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        breaks = "it has no effect" + (f"; did you mean {near[0]}?" if near else "")
    measured = f"{name} is set, and this vLLM does not read it"
    return Finding(name, Severity.WARNING, measured, breaks, f"unset {name}", unsets=(name,))


def _is_integer(value: str) -> bool:
    try:
        int(value)
    except ValueError:
        return False
    return True


def _problem(name: str, environ: Mapping[str, str], severity: Severity, breaks: str) -> Finding:
    (shown,) = redact_fields({name: environ[name]}).values()
    return Finding(name, severity, f"{name}={shown}", breaks, f"unset {name}", unsets=(name,))


Special = Callable[[Mapping[str, str], bool, bool], Finding | None]


def _fine(environ: Mapping[str, str], is_for_cpu: bool, own: bool) -> None:
    return None


def _batch_invariant(environ: Mapping[str, str], is_for_cpu: bool, own: bool) -> Finding | None:
    if int(environ[BATCH_INVARIANT]) == 0 or not is_for_cpu:
        return None
    breaks = (
        "its kernels are Triton's, for GPUs of compute capability 9.0: on a CPU vLLM's own models fail with a TypeError"
        " (sampler.name=vllm switches it off)"
    )
    return _problem(BATCH_INVARIANT, environ, Severity.BROKEN, breaks)


def _separate(environ: Mapping[str, str], is_for_cpu: bool, own: bool) -> Finding | None:
    if int(environ[SEPARATE]) == 0:
        return None
    breaks = "the engine is another process, and time decides which requests share a pass: bits differ between runs"
    remedy = f"export {SEPARATE}=0"
    return Finding(
        SEPARATE, Severity.WARNING, f"{SEPARATE}={environ[SEPARATE]}", breaks, remedy, exports=((SEPARATE, "0"),)
    )


def _host_ip(environ: Mapping[str, str], is_for_cpu: bool, own: bool) -> Finding | None:
    if own:
        return None
    breaks = "it is no address of this host: workers wait there for the engine until a timeout"
    return _problem(HOST_IP, environ, Severity.BROKEN, breaks)


def _port(environ: Mapping[str, str], is_for_cpu: bool, own: bool) -> Finding | None:
    value = environ[PORT]
    if _is_integer(value) and int(value) in PORTS:
        return None
    is_address = bool(urlsplit(value).scheme)
    why = "Kubernetes sets it for a service named vllm" if is_address else f"legal: {PORTS.start} to {PORTS.stop - 1}"
    return _problem(PORT, environ, Severity.BROKEN, f"vLLM refuses it as a port ({why})")


_SPECIAL: Mapping[str, Special] = {
    BATCH_INVARIANT: _batch_invariant,
    SEPARATE: _separate,
    HOST_IP: _host_ip,
    PORT: _port,
}
