"""Runs every command of rlharness on five trainers of other projects, and keeps their verdicts.

    python -m tests.conformance.commands                        all; makes three environments first
    python -m tests.conformance.commands --only sft ddp         some of them
    python -m tests.conformance.commands --write                puts verdicts into results.json and the page

A trainer is a script in a git repository of three commits: the script, a comment, and a changed learning rate. Every
command is typed as its users type it. Exit status 1 if an exit code is not as expected. Needs a package registry.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.programs.__main__ import environments
from tests.conformance.programs.table import Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RESULTS = HERE / "results.json"
PAGE = ROOT / "harness" / "lab" / "REPLAY.md"
MARKS = ("<!-- trainers: begin -->\n", "<!-- trainers: end -->")
TIMEOUT_S = 900.0
PYTHON = "{bin}/python"
TORCHRUN = "{bin}/torchrun --standalone --nproc-per-node 2"
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
VERDICT = re.compile(r"^(?:rlharness: recorded (\d+ steps)|([A-Z][A-Z ]+[A-Z])  )", re.MULTILINE)


@dataclass(frozen=True)
class Trainer:
    """One trainer and its arguments."""

    name: str
    title: str
    settings: tuple[str, ...]
    """Settings that its documents call neutral, as values of --vary; each is an option of the script."""
    environment: Environment | None = None
    launcher: str = PYTHON
    resume_at: int = 5
    codes: Mapping[str, int] = field(default_factory=dict)
    """Exit codes of steps that are not those of the table, by their titles."""

    def code(self, step: "Step") -> int:
        """Return the exit code that a step must have."""
        return self.codes.get(step.title, step.code)

    def command(self, bin_directory: Path, arguments: str = "") -> str:
        """Return the command line that trains."""
        return f"{self.launcher.format(bin=bin_directory)} train_{self.name}.py {arguments}".strip()


LOSES = {"replay --resume-at": 10}
HUGGING_FACE = ("accumulate=1,2", "workers=0,1", "checkpointing=off,on")
TRAINERS = (
    Trainer("grpo", "TRL GRPO", HUGGING_FACE, Environment.LANGUAGE),
    Trainer("sft", "TRL SFT", HUGGING_FACE, Environment.LANGUAGE),
    Trainer("lightning", "Lightning", ("accumulate=1,2", "workers=0,1"), Environment.LIBRARIES, codes=LOSES),
    Trainer(
        "sb3",
        "SB3 PPO",
        ("vec-env=dummy,subproc", "threads=1,2"),
        Environment.REINFORCEMENT,
        codes=LOSES,
    ),
    Trainer(
        "ddp",
        "DDP",
        ("bucket-mb=25,0.001", "bucket-view=off,on", "find-unused=off,on"),
        launcher=TORCHRUN,
        codes={"replay --resume-at": 11},
    ),
)


@dataclass(frozen=True)
class Step:
    """One command of rlharness in a trainer's repository."""

    title: str
    words: str
    """Its words; {train}, {seeded}, {varied}, {resume} are command lines of the trainer."""
    code: int = 0
    commit: str = "comment"
    """Commit that is checked out."""


STEPS = (
    Step("trace", "trace --out {out}/first -- {train}"),
    Step("replay", "replay -- {train}"),
    Step("replay --level deterministic", "replay --level deterministic -- {train}"),
    Step("another seed", "trace --out {out}/second -- {seeded}"),
    Step("diff", "diff {out}/first {out}/second", code=11),
    Step("replay --resume-at", "replay --resume-at {at} --resume-command '{resume}' -- {train}"),
    Step("chaos --vary", "chaos {settings} -- {varied}"),
    Step("chaos", "chaos --count 2 --factors hash_seed,load,cores -- {train}"),
    Step("reproduce --step", "reproduce {out}/first --step 3 -- {train}"),
    Step("--trace-ops", "reproduce {out}/first --step 3 --trace-ops -- {train}"),
    Step("gate, a comment", "gate --base HEAD~1 --fail-on behaviour,numerics -- {train}"),
    Step("gate, a rate", "gate --base HEAD~1 --fail-on behaviour,numerics -- {train}", code=10, commit="rate"),
    Step("bisect", "bisect --good HEAD~2 --bad HEAD -- {train}", commit="rate"),
)


def verdicts(trainer: Trainer, bin_directory: Path, scratch: Path) -> dict[str, str]:
    """Type every command in a new repository;
    return the verdict and exit code of each."""
    repository = scratch / trainer.name / "repository"
    make_repository(trainer, repository)
    options = " ".join(f"--{each.split('=')[0]} {{{each.split('=')[0]}}}" for each in trainer.settings)
    texts = {
        "out": str(repository.parent),
        "at": str(trainer.resume_at),
        "settings": " ".join(f"--vary {each}" for each in trainer.settings),
        "train": trainer.command(bin_directory),
        "seeded": trainer.command(bin_directory, "--seed 1"),
        "varied": trainer.command(bin_directory, options),
        "resume": trainer.command(bin_directory, "--resume"),
    }
    found: dict[str, str] = {}
    for step in STEPS:
        git(repository, "checkout", "--quiet", step.commit)
        began_s = time.monotonic()
        words = [sys.executable, "-m", "harness", *shlex.split(step.words.format(**texts))]
        done = subprocess.run(
            words, cwd=repository, env=environment(), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        log = f"$ {shlex.join(words)}\n{done.stdout}{done.stderr}exit code {done.returncode}\n"
        (repository.parent / f"{STEPS.index(step):02} {step.title}.txt").write_text(log, "utf-8")
        match = VERDICT.search(done.stdout + done.stderr)
        found[step.title] = f"{next(filter(None, match.groups())) if match else '-'}, {done.returncode}"
        print(
            f"{trainer.name:10} {step.title:30} {found[step.title]:16} {time.monotonic() - began_s:4.0f} s", flush=True
        )
        if done.returncode != trainer.code(step):
            print(log, flush=True)
        shutil.rmtree(repository / "checkpoints", ignore_errors=True)  # the next command starts anew
    return found


def is_expected(trainer: Trainer, found: Mapping[str, str]) -> bool:
    """Return whether every command ended with the exit code that it must have."""
    return all(found[step.title].endswith(f", {trainer.code(step)}") for step in STEPS)


def make_repository(trainer: Trainer, repository: Path) -> None:
    """Commit the script, a comment, and another learning rate; each commit is a branch."""
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    script = repository / f"train_{trainer.name}.py"
    text = (HERE / "scripts" / script.name).read_text("utf-8")
    rate = r'("--lr", type=float, default)=(\S+)\)'
    changed = re.sub(rate, lambda match: f"{match[1]}={0.9 * float(match[2]):g})", text)
    (repository / ".gitignore").write_text("checkpoint*\nppo_cartpole.zip\n.rlharness\n", "utf-8")
    for name, content in (("start", text), ("comment", f"# trains\n{text}"), ("rate", f"# trains\n{changed}")):
        script.write_text(content, "utf-8")
        git(repository, "checkout", "--quiet", "-b", name)
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "--message", name)


def git(repository: Path, *words: str) -> None:
    """Run git."""
    subprocess.run([*GIT, *words], cwd=repository, check=True)


def environment() -> dict[str, str]:
    """Return the environment of a command: one thread, and no hub."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the verdicts as a table in Markdown: a row for each command, a column for each trainer."""
    rows = [results.get(each.name, {}) for each in TRAINERS]
    lines = [["command", *(each.title for each in TRAINERS)]]
    lines += [[step.title, *(row.get(step.title, "-").rpartition(",")[0] for row in rows)] for step in STEPS]
    head, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join([head, "|---" * len(lines[0]) + "|\n", *rest])


def main(words: Sequence[str]) -> int:
    """Carry out a command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in TRAINERS], metavar="NAME")
    parser.add_argument("--into", type=Path, help="where environments stand; by default a cache directory")
    parser.add_argument("--out", type=Path, help="where repositories, traces and outputs are kept; default: nowhere")
    parser.add_argument("--write", action="store_true", help="put verdicts into results.json and the page")
    arguments = parser.parse_args(words)
    trainers = [each for each in TRAINERS if arguments.only is None or each.name in arguments.only]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    into = (arguments.into or cache / "rlharness" / "programs").absolute()
    pythons = environments({each.environment for each in trainers if each.environment}, into)
    results = json.loads(RESULTS.read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix="rlh-commands-") as scratch:
        out = (arguments.out or Path(scratch)).absolute()
        for trainer in trainers:
            python = pythons[trainer.environment] if trainer.environment else Path(sys.executable)
            results[trainer.name] = verdicts(trainer, python.parent, out)
    if arguments.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
        PAGE.write_text(before + MARKS[0] + table(results) + MARKS[1] + rest.partition(MARKS[1])[2], "utf-8")
    return int(any(not is_expected(each, results[each.name]) for each in trainers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
