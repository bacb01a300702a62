"""A checked-out repository that was made to harm whoever types a command of rlharness in it.

around/precious.txt, around/home/proj0 ..     what must not change
around/repo/.rlharness/...                    links, FIFOs and histories where rlharness keeps its own
around/repo/a trace, goldens, YAML  data that cannot be read
"""

import hashlib
import os
import stat
from pathlib import Path

from tests.support.hostile_documents import DEEP

KINDS = ("runs", "replays", "gates", "chaos", "bisections", "demo", "traces")
ESCAPES = "\x1b]0;P\x07"


def make_hostile_repository(around: Path, *, has_links: bool) -> Path:
    """Make it, and what stands around it; return its directory.

    Without `has_links`, a command of rlharness can make its own directories, and goes further.
    """
    (around / "precious.txt").write_text("precious")
    for number in range(30):
        (around / "home" / f"2026010{number % 10}-10101{number % 10}-{number:06x}").mkdir(parents=True)
    repo = around / "repo"
    (repo / "tests").mkdir(parents=True)
    (repo / "tests" / "test_plain.py").write_text("def test_passes(): pass\n")
    _make_own_directory(repo / ".rlharness", around, has_links=has_links)
    _make_traces(repo, around)
    _make_project(repo, around)
    return repo


def _make_own_directory(own: Path, around: Path, *, has_links: bool) -> None:
    own.mkdir()
    for kind in KINDS if has_links else ():
        (own / kind).symlink_to(around / "home")
    (own / ".gitignore").symlink_to(around / "ignored")  # dangling: writing it would make that file


def _make_traces(repo: Path, around: Path) -> None:
    for name in ("deep", "fifo", "linked", "wide"):
        (repo / name).mkdir()
    (repo / "deep" / "manifest.json").write_text("[" * DEEP)
    (repo / "deep" / "completions.jsonl").write_text('{"step": Infinity}\n' + "[" * DEEP + "\n")
    for name in ("manifest.json", "curve.jsonl", "rank-0.log", "completions.jsonl", "call.json", "events.jsonl"):
        os.mkfifo(repo / "fifo" / name)
        (repo / "linked" / name).symlink_to("/dev/zero")
    wide = '{"format": 1, "complete": true, "fingerprint": {}, "world_size": 1000000000, "read_by": "' + "9'; x" + '"}'
    (repo / "wide" / "manifest.json").write_text(wide)
    (repo / f"na{ESCAPES}me").mkdir()
    (repo / f"na{ESCAPES}me" / "manifest.json").write_text(
        '{"format": 99, "read_by": "9.9\' --index-url https://x \'"}'
    )
    for name in (".report.html.new", ".run.html.new", ".junit.xml.tmp", "report.html"):
        (repo / name).symlink_to(around / "precious.txt")


def _make_project(repo: Path, around: Path) -> None:
    (repo / "scenarios").mkdir()
    (repo / "scenarios" / "deep.yaml").write_text("[" * 5000)
    (repo / "scenarios" / "named.yaml").write_text(f"about: 'x{ESCAPES}'\nentry: os:system\nconfig: {{}}\n")
    os.mkfifo(repo / "scenarios" / "pipe.yaml")
    (repo / "goldens" / "named.smoke" / "k").mkdir(parents=True)
    (repo / "goldens" / "named.smoke" / "k" / "golden.json").write_text("[" * DEEP)
    (repo / "untracked.so").symlink_to(around / "pipe")
    os.mkfifo(around / "pipe")


def snapshot(around: Path, without: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, size and digest of each file around a repository, by its path."""
    found = {}
    for path in sorted(around.rglob("*")):
        if path == without or without in path.parents:
            continue
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_size, hashlib.sha256(content).hexdigest())
    return found
