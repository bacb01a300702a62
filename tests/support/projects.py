"""A small project in git whose scenario is a few tensors a step: for the gate, and for bisections."""

import os
import subprocess
from pathlib import Path

ENTRY = '''\
"""A few tensors a step."""

import json

import torch

from parts import SCALE, SIGN, WAIT_S


def run(config, *, level, directory, recorder):
    with (directory / "metrics.jsonl").open("w") as metrics:
        for step in range(config["num_steps"]):
            recorder.begin_step(step)
            values = torch.randn(64, generator=torch.Generator().manual_seed(config["seed"] + step)).sort().values
            recorder.record("rollout", "tokens", (values * 100).long().reshape(8, 8))
            recorder.record("reward", "rewards", values[::8].contiguous())
            advantages = values * SIGN
            recorder.record("advantage", "advantages", advantages)
            gradient = advantages * SCALE
            recorder.record("backward", "weight", gradient)
            recorder.end_step(reward_mean=values.mean(), loss=gradient.sum(), gradient_norm=gradient.norm())
            metrics.write(json.dumps({"step": step, "seconds/update": 0.1 + WAIT_S, "memory_gb/update": 1.0}) + "\\n")
'''
PARTS = "SCALE = 1.0\nSIGN = 1.0\nWAIT_S = 0.0\n"
SCENARIO = """\
about: A few tensors
entry: sums:run
determinism: deterministic
sizes: {smoke: {}}
config: {seed: 1, num_steps: 3}
"""
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


class Project:
    """A git repository with one commit: the entry, its parts, the scenario `sums`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "scenarios").mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Ada")
        self.first = self.commit(
            "The first", **{"sums.py": ENTRY, "parts.py": PARTS, "scenarios/sums.yaml": SCENARIO, ".gitignore": "__*\n"}
        )

    @property
    def environ(self) -> dict[str, str]:
        """In which somebody commits here."""
        return {**os.environ, **IDENTITY}

    def git(self, *words: str) -> str:
        """What git says."""
        done = subprocess.run(
            ["git", *words],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        """A file, not committed."""
        (self.directory / name).write_text(text, encoding="utf-8")

    def commit(self, message: str, **files: str) -> str:
        """Another commit, with these files; its hash."""
        for name, text in files.items():
            self.write(name, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def change(self, message: str, old: str, new: str, name: str = "parts.py") -> str:
        """Another commit, in which a text stands in the place of another; its hash."""
        text = (self.directory / name).read_text("utf-8")
        assert old in text
        return self.commit(message, **{name: text.replace(old, new)})

    @property
    def worktrees(self) -> list[str]:
        """What git knows of, itself left out."""
        return self.git("worktree", "list").splitlines()[1:]
