"""Packages that are imported are declared: each package of ours imports the base and the extras that it says it needs.

Tables come first, then every file against the rule, then the rule against planted imports.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.architecture_rules import Source, absent, house, is_among, third_party

ROOT = Path(__file__).resolve().parent.parent
SOURCES = house(ROOT)
EXTRAS_OF = {
    "harness/render/report/page.py": ("report",),  # it says how to get it where it is not there
    "harness/doctor/distributed_probe.py": ("engine", "ray"),
    "harness/doctor/torch_facts.py": ("engine",),
    "harness/fixtures/": ("engine", "ray"),
    "harness/lab/experiments/scenario_main.py": ("engine",),
    "harness/recording/": ("cuda", "engine"),
    "rlcore/": ("engine",),
    "rlcore/distributed/backends/ray_actors.py": ("ray",),
    "rlcore/distributed/placement/ray_cluster.py": ("ray",),
    "rlcore/distributed/placement/ray_reservation.py": ("ray",),
    "rlcore/distributed/ray_session.py": ("ray",),
    "rlcore/samplers/vllm/": ("vllm",),
    "rlcore/tasks/files.py": ("parquet",),
    "rlcore/weights/gpu_kernel.py": ("cuda",),
    "rlcore/weights/transports/ray_store.py": ("ray",),
}
"""Files and folders that need more than the base -> the extras whose packages they import."""
CONFORMANCE_ROOM = "tests/conformance/programs/scripts/"
PEER_ROOMS = (
    CONFORMANCE_ROOM,
    "tests/support/programs/",
    "tests/rlcore/peers/",
    "tests/benchmarks/one_step/trl_step.py",
)
"""Run with verl, transformers and TRL, in environments of their own."""
VLLM_ROOMS = (
    "tests/benchmarks/vllm_sampler.py",
    "tests/rlcore/samplers/vllm/",
    "tests/support/programs/vllm_batch_probe.py",
    "tests/support/unpacked_workers.py",
)
"""Run in vLLM's environment, or skipped."""
RAY_ROOMS = (
    "tests/benchmarks/worker_calls.py",
    "tests/benchmarks/weight_syncs.py",
    "tests/rlcore/distributed/ray_cases.py",
    "tests/rlcore/distributed/placement/ray_placement_cases.py",
    "tests/rlcore/weights/ray_store_cases.py",
    "tests/support/misbehaving/",
    "tests/support/networks/",
)
"""Programs whose tests skip without Ray."""

RUN_AS_PROGRAMS = frozenset({"py-spy"})  # dependencies that are started, never imported
PEERS = {"transformers", "trl", "tokenizers", "datasets", "tiny-language", "verl"}
"""Of programs with an environment of their own."""
CONFORMANCE_PEERS = {
    "accelerate",
    "diffusers",
    "gymnasium",
    "hydra",
    "ignite",
    "kornia",
    "language-models",
    "lightning",
    "omegaconf",
    "outcome",
    "peft",
    "safetensors",
    "schedulefree",
    "skorch",
    "stable-baselines3",
    "tensordict",
    "tianshou",
    "torch-geometric",
    "torchrl",
}
"""Of the conformance suite's programs, which import each other too."""


def distribution_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def distributions_of(modules: Iterable[str]) -> set[str]:
    return {name.lower().replace("_", "-") for module in modules for name in installed().get(module, [module])}


@cache
def installed() -> Mapping[str, list[str]]:
    """Top-level module -> the distributions of this environment that bring it."""
    return metadata.packages_distributions()


def declared(*extras: str) -> set[str]:
    """Distributions of the base and of these extras, as pyproject.toml names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
    return {distribution_name(r) for r in requirements} - {"rlharness"}


def test_imports_are_declared() -> None:
    assert {source.path: missing for source in SOURCES if (missing := undeclared(source))} == {}


def test_paths_in_the_tables_exist() -> None:
    assert absent((*EXTRAS_OF, *PEER_ROOMS, *RAY_ROOMS, *VLLM_ROOMS), (source.path for source in SOURCES)) == set()


def undeclared(source: Source) -> set[str]:
    """Distributions that a file imports, and that neither the base nor an extra of its own declares."""
    return distributions_of(third_party(source)) - allowed_distributions(source.path)


def allowed_distributions(path: str) -> set[str]:
    """Return what a file may import: the base, the extras of its places, and in tests all but Ray, unless they skip."""
    allowed = declared(*(extra for place, extras in EXTRAS_OF.items() if is_among(path, (place,)) for extra in extras))
    if path.startswith(("harness/", "rlcore/", "scenarios/")):
        return allowed
    allowed |= declared("browser", "cuda", "engine", "parquet", "plots", "report", "tests")
    if is_among(path, VLLM_ROOMS):
        return allowed | declared("vllm") | {"transformers"}
    if is_among(path, ("tests/fuzz/",)):
        return allowed | {"atheris"}  # installed by who fuzzes
    if is_among(path, (CONFORMANCE_ROOM,)):
        return allowed | PEERS | CONFORMANCE_PEERS
    if is_among(path, PEER_ROOMS):
        return allowed | declared("ray") | PEERS
    return allowed | declared("ray") if is_among(path, RAY_ROOMS) else allowed


def test_dependencies_are_used() -> None:
    harness = [source for source in SOURCES if source.path.startswith("harness/")]
    used = distributions_of({name for source in harness for name in third_party(source)})
    assert declared() - used == RUN_AS_PROGRAMS
    texts = "".join(source.text for source in harness)
    assert {program for program in RUN_AS_PROGRAMS if program not in texts} == set()


@pytest.mark.parametrize(
    ("path", "code", "missing"),
    [
        ("harness/runner/run.py", "import safetensors", {"safetensors"}),
        ("harness/recording/recorder.py", "def f():\n    import ray", {"ray"}),
        ("rlcore/types.py", "import pyarrow, hypothesis, torch", {"pyarrow", "hypothesis"}),
        ("rlcore/models/checkpoints.py", "import jinja2, safetensors, pydantic", {"jinja2"}),
        ("tests/runner/test_run.py", "import ray, hypothesis, safetensors", {"ray"}),
    ],
)
def test_an_undeclared_import_is_found(path: str, code: str, missing: set[str]) -> None:
    assert undeclared(Source(path, code)) == missing


def test_third_party_imports_are_found() -> None:
    source = Source(
        "harness/a.py", "import os, torch.cuda\ndef f():\n    from rich.text import Text\nimport harness.core.clock"
    )
    assert third_party(source) == {"torch", "rich"}
    assert distribution_name("Ray_X[default]>=2.50; python_version > '3'") == "ray-x"
    assert distributions_of({"pynvml", "nowhere_to_be_found"}) == {"nvidia-ml-py", "nowhere-to-be-found"}


VULNERABLE = {
    "Jinja2": ("3.1.5", "CVE-2025-27516"),
    "PyYAML": ("5.3.1", "CVE-2020-14343"),
    "pillow": ("12.2.0", "advisories fixed in 12.3.0"),
    "psutil": ("5.6.5", "CVE-2019-18874"),
    "pyarrow": ("14.0.0", "CVE-2023-47248"),
    "pydantic": ("2.3.0", "CVE-2024-3772"),
    "ray": ("2.55.1", "CVE-2026-57516; CVE-2026-41486, CVE-2026-27482 and CVE-2025-62593 before it"),
    "torch": ("2.10.0", "CVE-2026-4538"),
    "tqdm": ("4.66.2", "CVE-2024-34062"),
    "vllm": ("0.31.0", "CVE-2026-115911"),
}
"""The newest version with a vulnerability that was known on 2026-11-26 -> which one."""


def test_no_version_with_a_known_vulnerability_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found = {each.name: each.specifier for each in map(Requirement, texts) if each.name in VULNERABLE}
    assert found.keys() == VULNERABLE.keys()
    assert [name for name, (version, _) in VULNERABLE.items() if found[name].contains(version)] == []
