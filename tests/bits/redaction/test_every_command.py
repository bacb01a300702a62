"""Commands of the lab in a project whose configuration and command lines hold secrets: no artefact has one.

The configuration holds every secret of the tables, in its command line as a list of words. RLHARNESS_EVERY_COMMAND=1
has all commands run, with each command line as one text too, and once more with --no-redact; some by default.
"""

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.bits.redaction.secret_shapes import ALL, ALNUM, CONFIGURATIONS, PLAIN
from tests.bits.redaction.test_what_people_attach import leaks
from tests.support.cli_commands import type_command
from tests.support.projects import SCENARIO, Project

pytest.importorskip("torch")
pytestmark = [pytest.mark.full, pytest.mark.timeout(1000)]

NOT_LOOKED_AT = (".git", "scenarios", "sums.py", "parts.py", "__pycache__")
"""What the project's own author has written."""
SECRETS = sorted({secret for _, secret in CONFIGURATIONS} | {PLAIN, ALNUM})
IS_FULL = bool(os.environ.get("RLHARNESS_EVERY_COMMAND"))
CONFIG = "{seed: 1, num_steps: 3}"
LINES = ALL if IS_FULL else ()
CONFIGURED = {
    **{f"part_{number}": config for number, (config, _) in enumerate(CONFIGURATIONS)},
    **{f"words_{number}": ["python", "x.py", *each.argv] for number, each in enumerate(ALL)},
    **{f"line_{number}": shlex.join(each.argv) for number, each in enumerate(LINES)},
}
VALUE = ("--set", f"judge.api_key={PLAIN}")
FEW = (
    (("train", "one", "--out", "a"), ExitCode.OK),
    (("reproduce", "a", "--step", "1", *VALUE, "--out", "repeated"), ExitCode.OK),
    (("chaos", "sums", "--count", "1", "--json"), ExitCode.OK),
    (("gate", "--golden", "goldens", "--accept", "--reason", f"token={PLAIN}", "--runs", "1"), ExitCode.OK),
    (("reproduce", "a", "--step", "1", "--out", "again"), ExitCode.USAGE_ERROR),
    (("train", "sums", "--out", "b", "--set", f"api_key={PLAIN}", "--size", "none"), ExitCode.USAGE_ERROR),
    (("diff", "a", "repeated/run-1", "--json"), None),
    (("report", "a", "repeated/run-1", "--out", "page.html"), ExitCode.OK),
    (("scenarios",), ExitCode.OK),
    (("history",), None),
)
EVERY = (
    *FEW,
    (("train", "one", "--out", "b", "--set", "seed=2"), ExitCode.OK),
    (("train", "one", "--out", "c", "--until", "reward<100", *VALUE), ExitCode.OK),
    (("replay", "sums", "--out", "r", "--json"), ExitCode.OK),
    (("replay", "sums", "--sweep", "seed=1,2", "--out", "v"), None),
    (("gate", "--base", "HEAD~1", "--runs", "1", "--json"), ExitCode.DIVERGED),
    (("bisect", "sums", "--good", "HEAD~1", "--bad", "HEAD", "--json"), ExitCode.OK),
    (("report", "a", "b", "c", "--out", "three.html"), ExitCode.OK),
)
"""The full size, for RLHARNESS_EVERY_COMMAND=1: some 30 runs, each of which imports torch."""


def written(project: Path, cache: Path) -> list[tuple[str, str]]:
    """Path and text of each file that commands have left."""
    own = [path for path in project.rglob("*") if not set(path.relative_to(project).parts) & {*NOT_LOOKED_AT}]
    files = [path for path in (*own, *cache.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [(str(path), path.read_bytes().decode("utf-8", "replace")) for path in files]


def of_commands(
    tmp_path: Path, commands: Iterable[tuple[tuple[str, ...], ExitCode | None]], *options: str
) -> list[tuple[str, str]]:
    """What commands in a project full of secrets have printed and written, each with where it is."""
    project, cache = Project(tmp_path / "project"), tmp_path / "cache"
    many = json.dumps({"seed": 1, "num_steps": 3, **CONFIGURED})
    one = json.dumps({"seed": 1, "num_steps": 3, "judge": {"api_key": PLAIN}})
    assert CONFIG in SCENARIO
    project.write("scenarios/one.yaml", SCENARIO.replace(CONFIG, one))
    project.change("Secrets", CONFIG, many, "scenarios/sums.yaml")
    project.change("Another sign", "SIGN = 1.0", "SIGN = -1.0")
    texts: list[tuple[str, str]] = []
    for (name, *words), code in commands:
        is_recorded = bool(options) and name == "reproduce"  # the value, which may not be set then
        typed = (name, *options, *(word for word in words if not (is_recorded and word in VALUE)))
        done = type_command(project.directory, *typed, XDG_CACHE_HOME=str(cache), HF_TOKEN=f"hf_{ALNUM}")
        assert options or done.code == code or (code is None and done.code != ExitCode.INTERNAL_ERROR), (typed, done)
        texts += [(" ".join(typed), done.stdout), (f"standard error of {' '.join(typed)}", done.stderr)]
    return texts + written(project.directory, cache)


def test_no_artefact_of_any_command_has_a_secret(tmp_path: Path) -> None:
    texts = of_commands(tmp_path, EVERY if IS_FULL else FEW)
    assert len(texts) > 40 and any("repeated" in where for where, _ in texts), "there is much to look at"
    assert sorted({(where, secret) for where, text in texts for secret in SECRETS if secret in text}) == []
    assert leaks(texts) == []


@pytest.mark.skipif(not IS_FULL, reason="as many runs again, for RLHARNESS_EVERY_COMMAND=1")
def test_without_redaction_the_same_artefacts_have_them(tmp_path: Path) -> None:
    """So what the other test looks at does hold them, and --no-redact reaches every process."""
    found = {Path(where).name for where, _ in leaks(of_commands(tmp_path, EVERY, "--no-redact"))}
    assert found >= {"manifest.json", "run.json", "call.json", "page.html"}
