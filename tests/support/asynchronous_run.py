"""Asynchronous runs for tests: the three processes are forked from this one, which has imported all they need.

    python -m tests.support.asynchronous_run DIRECTORY --runs 5 --kills 20

makes an undisturbed run and others, with random delays or with processes killed at random, and compares their bits.
With --tools, trajectories have up to three turns and call a calculator, which is as slow as the rest.
"""

import argparse
import itertools
import json
import os
import random
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from string import printable
from types import MappingProxyType
from typing import Any

import torch
import yaml

from rlcore import determinism
from rlcore.asynchronous import infer, orchestrator, trainer
from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.directory import BATCHES, BROADCASTS, path_of, read, read_batches, steps
from rlcore.asynchronous.processes import run_infer, run_orch, run_train
from rlcore.asynchronous.settings import read_infer, read_orch, read_train
from rlcore.data import tools
from rlcore.data.tasks import alphabet
from rlcore.models.checkpoints import save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.probe import certify
from rlcore.samplers.batching import ContinuousBatch

NUM_LESSONS = 60
CONFIG = DecoderConfig("qwen3", 30, 32, 1, 2, 1, 16, 64, max_length=64)
MODULE = "tests.support.asynchronous_run"
WORDS = CharacterTokenizer(printable[:95] + "\n")
TALKING = DecoderConfig("qwen3", WORDS.vocab_size, 32, 1, 2, 1, 16, 64, max_length=64)
ENVIRONMENT = {"arguments": {"tools": {"q": "calculator"}}, "max_turns": 3, "max_answer_tokens": 8}
PRODUCTS = {"num_prompts": 64, "num_heldout": 4, "rewards": [f"{MODULE}:variety"], "environment": ENVIRONMENT}
WITH_TOOLS: Mapping[str, Any] = {
    "env": [{"id": "products", "args": PRODUCTS}],
    "seq_len": TALKING.max_length,
    "sampling": {"max_tokens": 12},
}
"""Settings of orch.yaml for a model that `make_talking_model` has made."""
ROLES: Mapping[str, tuple[Callable[..., Any], Callable[..., int]]] = {
    "infer": (read_infer, run_infer),
    "orch": (read_orch, run_orch),
    "train": (read_train, run_train),
}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def make_model(path: Path) -> Path:
    """A checkpoint of random weights that reads the characters of reverse_text."""
    tokenizer = CharacterTokenizer(alphabet("reverse_text"))
    save(Decoder(CONFIG).initialise(1), path)
    tokenizer.save(path)
    return path


def make_talking_model(path: Path) -> Path:
    """A checkpoint that asks a calculator for a sum of two digits, up to twice more, and then says a number."""
    torch.set_num_threads(1)
    decoder, rng = Decoder(TALKING).initialise(1), random.Random(1)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)

    def example() -> list[int]:
        text = "*".join(str(rng.randrange(10 ** rng.randint(2, 4))) for _ in range(2)) + "="
        for _ in range(rng.choice((0, 1, 2, 2, 3, 3))):
            one, other = rng.randrange(10), rng.randrange(10)
            text += f"<q>{one}+{other}</q>\n{one + other}\n"
        return [*WORDS.encode(f"{text}{rng.randrange(10)}"), WORDS.eos_id]

    for _ in range(NUM_LESSONS):
        rows = [torch.tensor(example()) for _ in range(16)]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=WORDS.pad_id)
        logits = decoder.logits(decoder.hidden(tokens[:, :-1]))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=WORDS.pad_id
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    save(decoder, path)
    WORDS.save(path)
    return path


def variety(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """A reward that differs within most groups, so that every step moves the weights."""
    return [len(set(text)) / 20 for text in completions]


def turns_of(run: Path) -> Counter[int]:
    """Trajectories of the batches by how many turns of the policy they have."""
    masks = [[False, *row["mask"]] for batch in read_batches(run) for row in batch["rows"]]
    return Counter(sum(now and not before for before, now in itertools.pairwise(mask)) for mask in masks)


def write_files(
    run: Path, model: Path, *, num_steps: int = 8, train: Mapping[str, Any] = MappingProxyType({}), **orch: Any
) -> dict[str, Path]:
    """The three files of a run in a directory."""
    port, output = free_port(), run / "run_default"
    contents: dict[str, dict[str, Any]] = {
        "train": {
            "model": str(model),
            "output_dir": str(run),
            "sequence_len": orch.get("seq_len", 64),
            "max_steps": num_steps,
            "learning_rate": 0.003,
            "per_device_train_batch_size": 4,
            "lora": False,
            "recipe": "fp32",
            "optimizer": "adamw",
            **train,
        },
        "infer": {"model": str(model), "port": port, "enable_lora": "lora" in train, "output_dir": str(output)},
        "orch": {
            "model": {"name": str(model)},
            "output_dir": str(output),
            "env": [{"id": "reverse-text", "args": {"num_prompts": 64, "num_heldout": 4}}],
            "batch_size": 16,
            "rollouts_per_example": 4,
            "seq_len": 64,
            "max_steps": num_steps,
            "sampling": {"max_tokens": 8},
            "client": {"base_url": [f"http://127.0.0.1:{port}/v1"]},
            "ckpt": {"interval": 3, "keep_last": 2},
            **orch,
        },
    }
    run.mkdir(parents=True, exist_ok=True)
    files = {role: run / f"{role}.yaml" for role in contents}
    for role, path in files.items():
        path.write_text(yaml.safe_dump(contents[role]), "utf-8")
    return files


Plant = Callable[[str], None]
"""What is done to a process of a role before it works."""


def fork(role: str, file: Path, delays: int | None = None, plant: Plant | None = None) -> int:
    """Start a process of a role; with `delays`, a seed, whatever it does takes a random time."""
    if pid := os.fork():
        return pid
    code = 3
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if delays is not None:
            _delay(random.Random(f"{delays} {role} {os.getpid()}"))
        if plant is not None:
            plant(role)
        read_section, work = ROLES[role]
        code = work(read_section(file)[0], partial(print, flush=True))
    except Exception:  # is in the log
        traceback.print_exc()
    finally:
        os._exit(code)


def _delay(rng: random.Random) -> None:
    """Let what the roles do take longer now and then: files, updates, steps of decoding, scores."""

    def slow(module: Any, name: str, most_s: float) -> None:
        original = getattr(module, name)

        def delayed(*args: Any, **kwargs: Any) -> Any:
            if rng.random() < 0.3:
                time.sleep(rng.random() * most_s)
            return original(*args, **kwargs)

        setattr(module, name, delayed)

    calculator = tools.TOOLS["calculator"]

    def slow_calculator(text: str, state: dict[str, Any]) -> object:
        time.sleep(rng.random() * 0.03)
        return calculator(text, state)

    tools.TOOLS = {**tools.TOOLS, "calculator": slow_calculator}
    for module, name, most_s in (
        (orchestrator, "advance", 0.05),
        (orchestrator, "publish", 0.1),
        (orchestrator, "score", 0.1),
        (orchestrator, "build_single_turn", 0.01),
        (trainer, "publish", 0.1),
        (trainer, "read_batch", 0.1),
        (infer, "read", 0.1),
        (ContinuousBatch, "step", 0.01),
        (os, "fsync", 0.002),
    ):
        slow(module, name, most_s)


@contextmanager
def running(
    files: Mapping[str, Path], delays: int | None = None, plant: Plant | None = None
) -> Iterator[dict[str, int]]:
    """The three processes, by role; they are killed at the end."""
    pids = {role: fork(role, files[role], delays, plant) for role in ROLES}
    try:
        yield pids
    finally:
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def prepare(config: DecoderConfig = CONFIG) -> None:
    """Look at this machine's operations once, which takes seconds, in a process of its own: threads forbid forks."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        shapes, heads = config.product_shapes, (config.head_shape,)
        found = pool.submit(certify, shapes=shapes, heads=heads, length=config.max_length).result()
    determinism._certified = lambda *_, **__: found  # type: ignore[assignment]


def complete(
    files: Mapping[str, Path],
    *,
    delays: int | None = None,
    kills: int = 0,
    every_s: float = 0.5,
    seed: int = 0,
    plant: Plant | None = None,
) -> int:
    """Run to the end, and return how often a process was killed; `kills` at most, at random moments."""
    rng, num_kills, deadline = random.Random(seed), 0, time.monotonic() + 600
    with running(files, delays, plant) as pids:
        next_s = time.monotonic() + rng.expovariate(1 / every_s)
        while True:
            for role, pid in list(pids.items()):
                found, status = os.waitpid(pid, os.WNOHANG)
                if not found:
                    continue
                if os.WIFSIGNALED(status):
                    pids[role] = fork(role, files[role], delays, plant)
                elif os.WEXITSTATUS(status):
                    raise AssertionError(f"{role} ended: {files[role].with_suffix('.log').read_text('utf-8')[-3000:]}")
                else:
                    del pids[role]
            if pids.keys() <= {"infer"}:  # an orchestrator may evaluate after the last step
                return num_kills
            if num_kills < kills and time.monotonic() > next_s:
                os.kill(pids[rng.choice(list(pids))], signal.SIGKILL)
                num_kills += 1
                next_s = time.monotonic() + rng.expovariate(1 / every_s)
            assert time.monotonic() < deadline, "the run does not end"
            time.sleep(0.02)


def bits(run: Path) -> dict[str, bytes]:
    """What must not depend on anybody's speed: the last weights, and every batch."""
    last = steps(run / BROADCASTS)[-1]
    files = path_of(run / BROADCASTS, last).glob("*.*")
    found = {path.name: read(run / BROADCASTS, last, path.name) for path in files}
    return found | {f"batch {step}": read(run / BATCHES, step, "batch.json") for step in steps(run / BATCHES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ahead", type=int, nargs="+", default=[1])
    parser.add_argument("--train", type=json.loads, default={}, help="settings of train.yaml, as JSON")
    parser.add_argument("--tools", action="store_true", help="trajectories of several turns")
    parser.add_argument("--free", type=int, default=0, help="runs of mode free, each with its replay")
    parser.add_argument("--complete", action="store_true", help="only the run whose three files are there")
    parser.add_argument("--delays", type=int, help="seed of random delays")
    given = parser.parse_args()
    prepare(TALKING if given.tools else CONFIG)
    if given.complete:
        complete({role: given.directory / f"{role}.yaml" for role in ROLES}, delays=given.delays)
        return
    make = make_talking_model if given.tools else make_model
    with ProcessPoolExecutor(1, get_context("fork")) as pool:  # autograd has threads
        model, num_kills = pool.submit(make, given.directory / "model").result(), 0
    for ahead in given.ahead:
        own, gentle = (WITH_TOOLS, {"learning_rate": 3e-4}) if given.tools else ({}, {})
        orch = {"max_async_level": ahead, "num_steps": given.steps, "train": {**gentle, **given.train}, **own}
        base = given.directory / f"a{ahead}"
        complete(write_files(base, model, **orch))
        expected = bits(base / "run_default")
        if given.tools:
            print(f"A={ahead} turns {json.dumps(turns_of(base / 'run_default'), sort_keys=True)}", flush=True)
        for number in range(given.runs):
            run = given.directory / f"a{ahead}-delayed{number}"
            began_s = time.monotonic()
            complete(write_files(run, model, **orch), delays=number)
            same = bits(run / "run_default") == expected
            verdict, seconds = "EQUAL" if same else "DIFFERENT", time.monotonic() - began_s
            print(f"A={ahead} delays {number}: {verdict} {seconds:.1f} s", flush=True)
        for number in range(given.free):
            run, again = (given.directory / f"a{ahead}-{name}{number}" for name in ("free", "again"))
            free = {**orch, "mode": "free", "max_off_policy_steps": 4}
            complete(write_files(run, model, **free), delays=100 + number)
            replay = {**free, "mode": "replay", "schedule": str(run / "run_default")}
            complete(write_files(again, model, **replay), delays=200 + number)
            same = bits(run / "run_default") == bits(again / "run_default")
            moved = "others" if bits(run / "run_default") != expected else "the same"
            print(
                f"A={ahead} free {number}: its replay {'EQUAL' if same else 'DIFFERENT'}, {moved} than strict",
                flush=True,
            )
        number = 0
        while num_kills < given.kills:
            run = given.directory / f"a{ahead}-killed{number}"
            count = complete(write_files(run, model, **orch), kills=given.kills - num_kills, seed=number)
            num_kills += count
            found = audit(run / "run_default")
            same = bits(run / "run_default") == expected
            print(
                f"A={ahead} killed {count} times: {'EQUAL' if same else 'DIFFERENT'},"
                f" lost {len(found.lost)}, doubled {len(found.doubled)}",
                flush=True,
            )
            number += 1


if __name__ == "__main__":
    main()
