"""Kill a process amid a save, at every file it touches, at drawn moments and at drawn bytes; then read what is left.

    python -m tests.rlcore.training.killed_saves DIRECTORY [--seed 0] [--num-drawn 40] [--naive]

One JSON object: how many were killed, and which checkpoint was read afterwards: "old" and "new" are whole, "lost" is
neither. `--naive` copies over the old checkpoint in place of saving: what happens without the mechanism.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlcore.checkpoint import PARTIAL, load, load_newest, save, write_state
from rlcore.errors import CheckpointError

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile")
NUM_ELEMENTS = 5000
Touched = Callable[[], None]


def write(directory: Path, content: int, step: int) -> None:
    """A checkpoint that can be told from those of another content, in every file."""

    def write_policy(path: Path) -> None:
        (path / "model.bin").write_bytes(bytes([content]) * NUM_ELEMENTS)

    def write_own_state(path: Path) -> None:
        write_state(path, {"a": torch.full((NUM_ELEMENTS,), float(content)), "b": torch.tensor(content)}, None)

    writers = {"policy": write_policy, "policy_state": write_own_state}
    save(directory, step, {"content": content}, writers, keep=1)


def content_of(directory: Path) -> int | None:
    """What the newest whole checkpoint was written with, the same in all of its files; None where there is none."""
    try:
        found = load_newest(directory)
    except CheckpointError:
        return None
    if found is None:
        return None
    state = load_file(found.path / "policy_state" / "state.safetensors")
    contents: set[int] = {int(state["b"]), found.values["content"], *map(int, state["a"].tolist())}
    contents |= set((found.path / "policy" / "model.bin").read_bytes())
    assert len(contents) == 1, f"a mixture of {contents} in {found.path}"
    return contents.pop()


def forked(directory: Path, work: Callable[[], None], touched: Touched) -> int:
    """The pid of a child that does this, and calls `touched` before each file of the directory it touches."""
    pid = os.fork()
    if pid:
        return pid

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(str(directory)):
            touched()

    sys.addaudithook(hook)
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def killed_at(place: int) -> Touched:
    """Kills its own process the `place`-th time."""
    left = [place]

    def touched() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return touched


def ended(pid: int) -> int:
    """The signal a child died of, 0 where it was done."""
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


class Trial:
    """The same beginning, any number of times: a whole checkpoint of content 1, and a save of content 2 over it."""

    def __init__(self, root: Path, *, step: int, is_naive: bool) -> None:
        self.root, self.step, self.is_naive = root, step, is_naive
        self.found: Counter[str] = Counter()
        self.directory = root / "run"
        write(root / "first", 1, 1)
        write(root / "second", 2, step)

    def begin(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.root / "first", self.directory)

    def work(self) -> None:
        if self.is_naive:
            shutil.copytree(self.root / "second", self.directory, dirs_exist_ok=True)
        else:
            write(self.directory, 2, self.step)

    def look(self, signal_number: int) -> None:
        """Read what is left, and see that the next save clears up."""
        self.found["killed"] += signal_number != 0
        self.found["done"] += signal_number == 0
        content = content_of(self.directory)
        self.found[{1: "old", 2: "new"}.get(content or 0, "lost")] += 1
        assert signal_number or content == 2
        if not self.is_naive:
            for path in self.directory.iterdir():
                if not path.name.endswith(PARTIAL):
                    load(path)  # half of one never has a checkpoint's name, an old one's neither
            write(self.directory, 3, 4)
            assert [path.name for path in self.directory.iterdir()] == ["step-000004"]
            assert content_of(self.directory) == 3

    def at_every_file(self) -> int:
        """Kill before the first file that is touched, the second, and so on; how many there are."""
        for place in range(1, 1000):
            self.begin()
            signal_number = ended(forked(self.directory, self.work, killed_at(place)))
            self.look(signal_number)
            if not signal_number:
                return place - 1
        raise AssertionError("a save that never ends")

    def at_a_moment(self, num_touched: int) -> None:
        """Kill from outside, as soon as so many files were touched: while it goes on."""
        self.begin()
        reading, writing = os.pipe()
        pid = forked(self.directory, self.work, lambda: (None, os.write(writing, b"."))[0])
        os.close(writing)
        for _ in range(num_touched):
            os.read(reading, 1)
        os.kill(pid, signal.SIGKILL)
        self.look(ended(pid))
        os.close(reading)

    def at_a_byte(self, num_bytes: int) -> None:
        """Die at this byte of the first file that is as large, with a part of it written."""

        def work() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
            self.work()

        self.begin()
        self.look(ended(forked(self.directory, work, lambda: None)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-drawn", type=int, default=40)
    parser.add_argument("--naive", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    drawn, told = random.Random(options.seed), {}
    for name, step in (("next step", 2), ("same step", 1)):
        trial = Trial(options.root / name.replace(" ", "-"), step=step, is_naive=options.naive)
        num_files = trial.at_every_file()
        for _ in range(options.num_drawn):
            trial.at_a_moment(drawn.randint(0, num_files))
            trial.at_a_byte(drawn.randint(1, 4 * NUM_ELEMENTS + 100))
        told[name] = {"files": num_files, **trial.found}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
