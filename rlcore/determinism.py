"""The level of a run: entered once, around all of it, and its effect looked at.

off            nothing is promised
deterministic  two runs of one configuration on one machine agree: torch's deterministic algorithms
invariant      bits follow from the configuration and the machine's numerics alone: the operations of rlcore.numerics,
               certified for this model; on CPUs, and on GPUs by kernels of Triton
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

from harness.bits.levels import INVARIANT, MOVE_BITS, SETTINGS, conflict, settings_of
from rlcore.config import LEVELS
from rlcore.errors import InvalidValueError, LevelError
from rlcore.models.config import DecoderConfig
from rlcore.numerics.level import check_invariant_device, check_settings, is_invariant
from rlcore.numerics.probe import THREADS, InvarianceReport, certify, check_threads, invariant
from rlcore.numerics.product import hold_mkl_mode

_certified, _check_threads = cache(certify), cache(check_threads)
"""Once in a process; whether it still holds is seen whenever the level is entered."""
_WORKSPACE = next(setting for setting in SETTINGS if setting.name == "CUBLAS_WORKSPACE_CONFIG")


@contextmanager
def at_level(
    level: str,
    config: DecoderConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    length: int,
    threads: Collection[int] = (),
) -> Iterator[InvarianceReport | None]:
    """Hold a level for what runs inside, up to sequences of `length`; gives the InvarianceReport at level invariant.

    `threads` are the numbers of threads that torch will compute with. Raises LevelError where this machine cannot hold
    it, InvalidValueError where there is no such level.
    """
    if level not in LEVELS:
        raise InvalidValueError(f"the level {level!r}", legal=", ".join(LEVELS))
    check_level_of_device(level, device)
    with _deterministic_algorithms(level):  # which are what the probe has to look at
        invariance_report = None
        if level == "invariant":
            shapes, heads = config.product_shapes, (config.head_shape,)
            invariance_report = _certified(dtype, shapes=shapes, heads=heads, length=length, device=device)
            for count in sorted(set(threads) - set(THREADS)) if torch.device(device).type == "cpu" else ():
                _check_threads(invariance_report, count)
        with invariant(invariance_report) if invariance_report else nullcontext():
            yield invariance_report


def worker_environment(level: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that each process of a run needs before it starts; `environ` is the controller's.

    They are the controller's own that move bits, and the level's where the controller has none. Raises LevelError for
    values that the level does not allow, InvalidValueError for a level that does not exist.
    """
    _check_variables(level, environ)
    own = {name: environ[name] for name in sorted(MOVE_BITS & environ.keys()) if environ[name]}
    return {setting.name: setting.value for setting in settings_of(level)} | own


def _check_variables(level: str, environ: Mapping[str, str]) -> None:
    if level not in LEVELS:
        raise InvalidValueError(f"the level {level!r}", legal=", ".join(LEVELS))
    if found := conflict(level, environ):
        raise LevelError(found.what, legal=found.legal, remedy=found.remedy)


def check_level_of_device(level: str, device: str) -> None:
    """See that a level can be held on a device, before anything is computed there; asks no driver.

    Raises LevelError: for level invariant on a device without kernels for it, with variables that move its bits, or
    with MKL in another mode; and on a GPU without the workspace that cuBLAS needs.
    """
    if level == INVARIANT:
        check_invariant_device(device)
        _check_variables(level, os.environ)
        hold_mkl_mode(os.environ)
    if level == "off" or torch.device(device).type != "cuda":
        return
    found = os.environ.get(_WORKSPACE.name, "")
    if not _WORKSPACE.allows(found):
        raise LevelError(
            f"{_WORKSPACE.name} is {found or 'not set'}, and level {level} computes on {device}",
            legal=_WORKSPACE.legal,
            remedy=f"export {_WORKSPACE.name}=:4096:8 before Python starts; rlharness train sets it",
        )


def kernels_of(level: str, device: str) -> dict[str, str]:
    """Return the names and versions of a level's own kernels on a device, for the fingerprint; empty for libraries'."""
    if level != INVARIANT or torch.device(device).type != "cuda":
        return {}
    from rlcore.numerics.gpu import kernels

    return {"kernels": kernels()}


def check_level(level: str) -> None:
    """See that a level is at work here. Raises LevelError."""
    if level == "invariant":
        if not is_invariant():
            raise LevelError("the level invariant is not active", remedy="enter it: with at_level(...)")
        check_settings()
    if level != "off" and not torch.are_deterministic_algorithms_enabled():
        raise LevelError(
            "torch's deterministic algorithms are off", remedy="leave torch.use_deterministic_algorithms alone"
        )


@contextmanager
def _deterministic_algorithms(level: str) -> Iterator[None]:
    """torch refuses what it cannot do twice alike; as it was before, however this ends."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if level != "off":
            torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
