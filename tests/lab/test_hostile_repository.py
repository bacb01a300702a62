"""Every command in a repository that was made to do harm: it ends, in its own words, and changes nothing outside."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command
from tests.support.hostile_repository import ESCAPES, make_hostile_repository, snapshot

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

TRACES = ("deep", "fifo", "linked", "wide", f"na{ESCAPES}me")
WRITING = (
    ("run", "--gpus", "none"),
    ("run", "--gpus", "none", "--junit", "out.xml", "--html", "page.html"),
    ("run", "--gpus", "none", "--last-failed"),
    ("run", "--gpus", "none", "--resume", "fifo"),
    ("replay", "--", "true"),
    ("train", "named", "--out", "trained"),
    ("gate", "--golden", "goldens", "named"),
)
COMMANDS = (
    *WRITING,
    ("plan", "--gpus", "none"),
    ("history",),
    ("merge", "fifo", "linked"),
    ("scenarios",),
    ("scenarios", "--check"),
    ("replay", "named"),
    ("chaos", "named"),
    *(("diff", trace, "deep") for trace in TRACES),
    *(("report", trace, "--out", "page.html") for trace in TRACES),
    *(("reproduce", trace, "--step", "1") for trace in TRACES),
)


CASES = [(command, False) for command in COMMANDS] + [(command, True) for command in WRITING]


@pytest.mark.parametrize(
    ("command", "has_links"),
    CASES,
    ids=lambda given: " ".join(given).encode("unicode_escape").decode() if isinstance(given, tuple) else str(given),
)
def test_a_command_harms_nobody(command: tuple[str, ...], has_links: bool, tmp_path: Path) -> None:
    repo = make_hostile_repository(tmp_path, has_links=has_links)
    before = snapshot(tmp_path, repo)
    done = type_command(repo, *command, XDG_CACHE_HOME=str(repo / "cache"))
    output = done.stdout + done.stderr
    assert done.code != ExitCode.INTERNAL_ERROR, output
    assert "Traceback" not in output
    assert "\x1b]" not in output, "no control character of the repository reaches the terminal"
    assert "--index-url" not in output, "no remedy has its text"
    assert snapshot(tmp_path, repo) == before
