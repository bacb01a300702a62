"""Commands of the lab in a project whose configuration and command lines hold secrets: no artefact has one.

RLHARNESS_EVERY_COMMAND=1 has all of them run; some by default.
"""

import json
import os
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from tests.core.redaction.secret_shapes import ALNUM, CONFIGURATIONS, PLAIN
from tests.support.cli_commands import type_command
from tests.support.projects import SCENARIO, Project

pytest.importorskip("torch")
pytestmark = [pytest.mark.full, pytest.mark.timeout(1000)]

NOT_LOOKED_AT = (".git", "scenarios", "sums.py", "parts.py", "__pycache__")
"""What the project's own author has written."""
SECRETS = sorted({secret for _, secret in CONFIGURATIONS} | {PLAIN, ALNUM})
CONFIG = "{seed: 1, num_steps: 3}"
CONFIGURED = {f"part_{number}": config for number, (config, _) in enumerate(CONFIGURATIONS)}
VALUE = ("--set", f"judge.api_key={PLAIN}")
FEW = (
    (("train", "one", "--out", "a"), ExitCode.OK),
    (("reproduce", "a", "--step", "1", *VALUE, "--bundle", "step.rlb", "--out", "bundled"), ExitCode.OK),
    (("reproduce", "step.rlb", *VALUE, "--out", "unpacked"), ExitCode.OK),
    (("chaos", "sums", "--count", "1", "--json"), ExitCode.OK),
    (("gate", "--golden", "goldens", "--accept", "--reason", f"token={PLAIN}", "--runs", "1"), ExitCode.OK),
    (("reproduce", "a", "--step", "1", "--out", "again"), ExitCode.USAGE_ERROR),
    (("train", "sums", "--out", "b", "--set", f"api_key={PLAIN}", "--size", "none"), ExitCode.USAGE_ERROR),
    (("diff", "a", "bundled", "--json"), None),
    (("report", "a", "bundled", "--out", "page.html"), ExitCode.OK),
    (("scenarios",), ExitCode.OK),
    (("history",), None),
)
EVERY = (
    *FEW,
    (("train", "one", "--out", "b", "--set", "seed=2"), ExitCode.OK),
    (("train", "one", "--out", "c", "--until", "reward<100", *VALUE), ExitCode.OK),
    (("replay", "sums", "--out", "r", "--json"), ExitCode.OK),
    (("replay", "sums", "--sweep", "seed=1,2", "--out", "v"), None),
    (("transplant", "a", "b", "--take", "advantages", *VALUE, "--json"), None),
    (("gate", "--base", "HEAD~1", "--runs", "1", "--json"), ExitCode.DIVERGED),
    (("bisect", "sums", "--good", "HEAD~1", "--bad", "HEAD", "--json"), ExitCode.OK),
    (("report", "a", "b", "c", "--out", "three.html"), ExitCode.OK),
)
"""The full size, for RLHARNESS_EVERY_COMMAND=1: some 30 runs, each of which imports torch."""


def written(project: Path, cache: Path) -> list[tuple[str, str]]:
    """Path and text of each file that commands have left, bundles included, which compress nothing."""
    own = [path for path in project.rglob("*") if not set(path.relative_to(project).parts) & {*NOT_LOOKED_AT}]
    files = [path for path in (*own, *cache.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [(str(path), path.read_bytes().decode("utf-8", "replace")) for path in files]


def test_no_artefact_of_any_command_has_a_secret(tmp_path: Path) -> None:
    commands = EVERY if os.environ.get("RLHARNESS_EVERY_COMMAND") else FEW
    project, cache = Project(tmp_path / "project"), tmp_path / "cache"
    many = json.dumps({"seed": 1, "num_steps": 3, **CONFIGURED})
    one = json.dumps({"seed": 1, "num_steps": 3, "judge": {"api_key": PLAIN}})
    assert CONFIG in SCENARIO
    project.write("scenarios/one.yaml", SCENARIO.replace(CONFIG, one))
    project.change("Secrets", CONFIG, many, "scenarios/sums.yaml")
    project.change("Another sign", "SIGN = 1.0", "SIGN = -1.0")
    texts: list[tuple[str, str]] = []
    for words, code in commands:
        done = type_command(project.directory, *words, XDG_CACHE_HOME=str(cache), HF_TOKEN=f"hf_{ALNUM}")
        assert done.code == code or (code is None and done.code != ExitCode.INTERNAL_ERROR), (words, done)
        texts.append((" ".join(words), done.stdout + done.stderr))
    texts += written(project.directory, cache)
    assert len(texts) > 40 and any("step.rlb" in where for where, _ in texts), "there is much to look at"
    assert sorted({(where, secret) for where, text in texts for secret in SECRETS if secret in text}) == []
