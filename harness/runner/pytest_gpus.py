"""A pytest plugin: leases GPUs to plain pytest, or to each worker of pytest-xdist, by the claims of `rlharness run`.

pytest -p harness.runner.pytest_gpus --gpus auto -n 8

this process, which ends last ─▶ claims free GPUs ─▶ plain pytest: its own environment, before any conftest file
                                                 └▶ -n 8: the environment of each worker, before it starts pytest
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from harness.bits.errors import HarnessError
from harness.bits.text import count
from harness.machine.gpus import read_inventory
from harness.machine.inventory import Gpu, Inventory
from harness.plugin import MarkError, need_of_mark, visible_gpu_ids
from harness.process.child_env import (
    ATTEMPT_MARKER,
    CUDA_VISIBLE_DEVICES,
    child_env,
    lease_variable,
)
from harness.process.claims import Claims
from harness.runner.need import Need
from harness.runner.schedule.leases import LeaseTable

CLAIMS = pytest.StashKey[Claims]()
LEASED = "RLHARNESS_LEASED_GPUS"
"""Variable with the leased GPUs of this process, as JSON: a worker does not ask the driver."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rlharness")
    given = "GPUs to lease, as for rlharness run: auto, none, 4, 0,2,GPU-8f2 or sim:8."
    group.addoption("--gpus", metavar="SPEC", default=None, help=given)
    each = "GPUs of each worker of pytest-xdist.  [default: 1]"
    group.addoption("--gpus-per-worker", metavar="N", type=int, default=1, help=each)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Lease the GPUs of a pytest without workers, before a conftest file can look at them."""
    given = early_config.known_args_namespace
    if given.gpus is None or ATTEMPT_MARKER in os.environ:  # within `rlharness run`, the unit has its lease
        return
    if given.gpus_per_worker < 1:
        raise pytest.UsageError(f"--gpus-per-worker {given.gpus_per_worker}: legal are 1 and more")
    if not getattr(given, "numprocesses", None):
        os.environ.update(_shown(_lease(early_config, given.gpus).gpus))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Give each worker its GPUs, before it starts; one that replaces a crashed worker has the same."""
    wanted = config.getoption("gpus")
    if wanted is None or ATTEMPT_MARKER in os.environ:
        return
    each = config.getoption("gpus_per_worker")
    if wanted == "auto":
        each *= _has_gpus()
        gpus = _lease_for_workers(config, len(specs), each)
    else:
        gpus = _lease(config, wanted).gpus
    if len(gpus) < each * len(specs):
        raise pytest.UsageError(
            f"{len(specs)} workers with {each} GPUs each need {each * len(specs)}, and --gpus {wanted} gives"
            f" {len(gpus)}: use at most -n {len(gpus) // each}"
        )
    for number, spec in enumerate(specs):
        spec.env.update(_shown(gpus[number * each : (number + 1) * each]))


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip the tests whose GPUs this process does not have."""
    if config.getoption("gpus", None) is None:
        return
    num_gpus = len(visible_gpu_ids(os.environ))
    leased = _leased(os.environ)
    for item in items:
        if (mark := item.get_closest_marker("gpus")) is None:
            continue
        try:
            need = Need.from_json(need_of_mark(mark.args, mark.kwargs))
        except MarkError:  # harness.plugin reports it
            continue
        why = ""
        if need.gpus > num_gpus:
            why = f"needs {count(need.gpus, 'GPU')}; this process has {num_gpus}: --gpus-per-worker, or rlharness run"
        elif need.gpus and leased is not None:  # a test uses the first of the visible GPUs
            why = LeaseTable(Inventory(gpus=leased[: need.gpus]), 0, mix_models=True).why_never(need)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Return the GPUs; the kernel does so for a process that was killed."""
    if (claims := config.stash.get(CLAIMS, None)) is not None:
        claims.close()


def _lease(config: pytest.Config, wanted: str) -> Inventory:
    """Claim the GPUs. Raises UsageError where they cannot be had."""
    return _read(wanted, config.stash.setdefault(CLAIMS, Claims()))


def _read(wanted: str, claims: Claims | None = None, why: str = "") -> Inventory:
    try:
        return read_inventory(wanted, os.environ, claims)
    except HarnessError as error:
        said = why.format(error.what.removeprefix(f"--gpus {wanted}: ")) if why else f"{error}\nchange --gpus"
        raise pytest.UsageError(said) from None


def _has_gpus() -> bool:
    """Whether this machine shows GPUs to this process, busy ones too."""
    found = _read("auto")
    return bool(found.gpus or found.left_out)


def _lease_for_workers(config: pytest.Config, num_workers: int, each: int) -> tuple[Gpu, ...]:
    """Claim as many of the free GPUs as the workers need. Raises UsageError where there are fewer."""
    asked = str(num_workers * each)
    why = f"--gpus auto: {num_workers} workers with {each} GPUs each need {asked}, and {{}}"
    return _read(asked, config.stash.setdefault(CLAIMS, Claims()), f"{why}\nchange -n or --gpus-per-worker").gpus


def _leased(environ: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """The GPUs that this process or its parent has leased; None within `rlharness run`, which leases by the need."""
    if ATTEMPT_MARKER in environ or (text := environ.get(LEASED)) is None:
        return None
    return tuple(Gpu(**{**each, "capability": tuple(each["capability"])}) for each in json.loads(text))


def _shown(gpus: Sequence[Gpu]) -> Mapping[str, str]:
    """The variables that show these GPUs and no others, and say what they are."""
    env = child_env(os.environ, gpus=gpus, tmpdir="", marker="", master_port=0)
    shown = {CUDA_VISIBLE_DEVICES: env[CUDA_VISIBLE_DEVICES]}
    leased = json.dumps([asdict(gpu) for gpu in gpus])
    return {**shown, **lease_variable(f"pytest-{os.getpid()}-{gpus[0].gpu_id if gpus else ''}", gpus), LEASED: leased}
