"""Bundles of somebody else: nothing that they name is imported, called or opened unless a scenario here names it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.bundle import Content, NamedCheckpoint, checksums, open_bundle, write_bundle
from tests.support.cli_commands import type_command

pytest.importorskip("torch")
pytestmark = pytest.mark.full
EVIL = b"open('PWNED', 'w').close()\ndef reward(prompts, **columns):\n    return [0.0] * len(prompts)\n"
ROWS = [{"prompt": f"p{number}", "answer": "a", "cmd": "touch PWNED; true"} for number in range(80)]
CURVE = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def forge(
    bundle: Path,
    path: Path,
    values: Mapping[str, Any],
    members: Mapping[str, bytes] | None = None,
    checkpoint: NamedCheckpoint | None = None,
) -> Path:
    """Write a bundle with other values at `section.key` of its configuration, and with more members."""
    whole = open_bundle(bundle)
    contents: dict[str, Content] = {name: whole.read(name, 2**30) for name in whole.head.members}
    call = json.loads(whole.read("call.json"))
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        call["config"].setdefault(section, {})[key] = value
    contents["call.json"] = json.dumps(call).encode()
    contents |= dict(members or {})
    write_bundle(path, replace(whole.head, members=checksums(contents), checkpoint=checkpoint), contents)
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a step of a shipped scenario, which its finder has made on a machine of his own."""
    project = tmp_path_factory.mktemp("theirs")
    elsewhere = {"XDG_CACHE_HOME": str(project / "cache")}
    made = type_command(project, "train", "grpo_reverse_text", "--size", "tiny", "--out", "run", **elsewhere)
    assert made.code == ExitCode.OK, made.stdout + made.stderr
    made = type_command(project, "reproduce", "run", "--step", "2", "--bundle", "clean.rlb", **elsewhere)
    assert made.code == ExitCode.OK, made.stdout + made.stderr
    return project / "clean.rlb"


@pytest.mark.timeout(240)
def test_a_bundle_of_an_unchanged_scenario_runs_without_question(tmp_path: Path, clean: Path) -> None:
    done = type_command(tmp_path, "reproduce", str(clean), XDG_CACHE_HOME=str(tmp_path / "cache"))

    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCED  step 2")
    assert "trust" not in done.stdout + done.stderr
    assert "note: the code came from this machine, not from the bundle: rlcore.entrypoint:run\n" in done.stdout


@pytest.mark.parametrize(
    ("values", "members", "listed"),
    [
        (
            {"task.rewards": ["again.bundle.checkpoints.step-000099.evil:reward"]},
            {},
            ['task.rewards.[] = "again.bundle.checkpoints.step-000099.evil:reward"'],
        ),
        (
            {"task.name": "file", "task.path": "again/bundle/curve.jsonl", "task.rewards": ["subprocess:getoutput"]},
            {"curve.jsonl": CURVE},
            ['task.rewards.[] = "subprocess:getoutput"'],
        ),
        ({"task.rewards": ["setup:x"]}, {}, ['task.rewards.[] = "setup:x"']),
    ],
    ids=["own-module", "shell-command", "a-file-of-the-checkout"],
)
@pytest.mark.timeout(120)
def test_what_no_scenario_here_names_is_listed_and_not_used(
    tmp_path: Path, clean: Path, values: dict[str, object], members: dict[str, bytes], listed: list[str]
) -> None:
    (tmp_path / "setup.py").write_bytes(EVIL)
    forge(clean, tmp_path / "evil.rlb", values, members)

    done = type_command(tmp_path, "reproduce", "evil.rlb", "--out", "again", "--timeout", "20")

    assert not (tmp_path / "PWNED").exists()
    assert done.code == ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "evil.rlb would use 1 value that" in done.stderr
    for line in listed:
        assert f"\n    {line}" in done.stderr
    assert "remedy: add --trust only if you trust its author" in done.stderr
    assert "\x1b" not in done.stderr
    assert not (tmp_path / "again").exists(), "nothing was unpacked"


@pytest.mark.timeout(120)
def test_a_module_among_the_files_of_a_checkpoint_is_no_member_of_a_bundle(tmp_path: Path, clean: Path) -> None:
    values = {"task.rewards": ["again.bundle.checkpoints.step-000099.evil:reward"]}
    forge(clean, tmp_path / "evil.rlb", values, {"checkpoints/step-000099/evil.py": EVIL})

    for words in ((), ("--trust",)):
        done = type_command(tmp_path, "reproduce", "evil.rlb", "--out", "again", *words)
        assert not (tmp_path / "PWNED").exists()
        assert done.code == ExitCode.USAGE_ERROR, done.stdout + done.stderr
        assert "a member called 'checkpoints/step-000099/evil.py'" in done.stderr
        assert not (tmp_path / "again").exists()


@pytest.mark.timeout(120)
def test_a_directory_that_a_bundle_names_is_not_read(tmp_path: Path, clean: Path) -> None:
    (tmp_path / "step-000002").mkdir()
    forge(clean, tmp_path / "a.rlb", {}, checkpoint=NamedCheckpoint(str(tmp_path / "step-000002"), "0" * 32))

    done = type_command(tmp_path, "reproduce", "a.rlb")
    assert done.code == ExitCode.USAGE_ERROR
    assert f'\n    checkpoint = "{tmp_path}/step-000002"\n' in done.stderr
    trusted = type_command(tmp_path, "reproduce", "a.rlb", "--trust")
    assert "step-000002, which is another one" in trusted.stderr


@pytest.mark.timeout(240)
def test_a_bundle_that_is_trusted_runs_after_all_of_it_was_listed(tmp_path: Path, clean: Path) -> None:
    (tmp_path / "theirs.py").write_bytes(EVIL)
    forge(clean, tmp_path / "a.rlb", {"task.rewards": ["theirs:reward"]})

    done = type_command(tmp_path, "reproduce", "a.rlb", "--trust")

    assert (tmp_path / "PWNED").exists(), done.stdout + done.stderr
    assert done.stderr.startswith(
        'rlharness: note: trusted, though no scenario here names it: task.rewards.[] = "theirs:reward"\n'
    )


@pytest.mark.timeout(240)
def test_a_scenario_of_the_checkout_that_names_the_function_lets_it_run(tmp_path: Path, clean: Path) -> None:
    (tmp_path / "mine.py").write_bytes(EVIL)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text(
        "about: mine\nentry: rlcore.entrypoint:run\ndeterminism: invariant\n"
        "config: {task: {rewards: ['mine:reward']}}\n"
    )
    forge(clean, tmp_path / "a.rlb", {"task.rewards": ["mine:reward"]})

    done = type_command(tmp_path, "reproduce", "a.rlb")

    assert (tmp_path / "PWNED").exists(), done.stdout + done.stderr
    assert "trust" not in done.stdout + done.stderr
