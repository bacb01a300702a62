"""Dependencies that are declared exclude known vulnerabilities; deptry finds those that are missing or unused."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
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
