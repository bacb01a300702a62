"""A run of the reference's example files, and one more for each option, switched on alone: what each does.

    python -m tests.benchmarks.asynchronous_options                        # some three minutes
    python -m tests.benchmarks.asynchronous_options "lora: false" dp       # those whose name has this text
    python -m tests.benchmarks.asynchronous_options --write                # its table into rlcore/ASYNCHRONOUS.md

Each row states what the run's files show, and is checked. An option that moves no bit of rows and weights is an error,
and so is an option of the runtime that moves one. The page is compared with the stored rows by its tests.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from itertools import pairwise
from multiprocessing import get_context
from os import WNOHANG, environ, kill, waitpid
from pathlib import Path
from signal import SIGKILL
from string import printable
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from rlcore.algorithms.schedules import noise_sigma
from rlcore.asynchronous.broadcast import NORMS
from rlcore.asynchronous.directory import BATCHES, BROADCASTS, CHECKPOINTS, EVALUATIONS, METRICS, path_of, read, steps
from rlcore.asynchronous.directory import read_batch as read_step
from rlcore.data.tasks import alphabet
from rlcore.models import adapters
from rlcore.models.checkpoints import load, save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import machine
from rlcore.numerics.product import hold_mkl_mode
from tests.support.asynchronous_run import CONFIG, complete, fork, free_port, make_model, prepare

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "rlcore" / "ASYNCHRONOUS.md"
TABLE = re.compile(r"(<!-- options -->\n).*?(<!-- end -->)", re.DOTALL)
NUM_STEPS, LENGTH = 6, 64
EXAMPLE = {
    "train": """
        model: "Qwen/Qwen3-0.6B"
        output_dir: ./outputs
        gpus: 1
        per_device_train_batch_size: 1
        sequence_len: 2048
        max_steps: 40
        logging_steps: 1
        learning_rate: 2e-4
        lr_scheduler_type: constant
        max_grad_norm: 1.0
        weight_decay: 0.01
        recipe: fp8-hybrid
        lora: true
        lora_rank: 16
        lora_alpha: 32
        lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
        loss: {ratio_type: token, kl_tau: 0.0, adv_tau: 1.0, token_mask_low: 0.125, token_mask_high: 8.0,
          geo_mask_low: 0.1, geo_mask_high: 10.0}
    """,
    "infer": """{model: "Qwen/Qwen3-0.6B", enable_lora: true, max_lora_rank: 32}""",
    "orch": """
        {model: {name: "Qwen/Qwen3-0.6B", lora_adapter: "default", lora_rank: 16, lora_alpha: 32},
        env: [{id: reverse-text}], batch_size: 128, rollouts_per_example: 16, seq_len: 2048, max_steps: 40,
        sampling: {max_tokens: 128}}""",
}
"""The files of the quick start."""
ENV: Mapping[str, Any] = {"id": "reverse-text", "args": {"num_prompts": 12, "num_heldout": 4}}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "train": {
        "sequence_len": LENGTH,
        "max_steps": NUM_STEPS,
        "learning_rate": 0.01,
        "per_device_train_batch_size": 4,
    },
    "infer": {},
    "orch": {
        "env": [ENV],
        "batch_size": 16,
        "rollouts_per_example": 4,
        "seq_len": LENGTH,
        "max_steps": NUM_STEPS,
        "sampling": {"max_tokens": 8},
    },
}
"""What this program changes in them: sizes."""
WORDS = CharacterTokenizer(printable[:95] + "\n")
CALL, ANSWER = "<calc>6*7</calc>", "\n42\n"
TOOLS = {"arguments": {"tools": {"calc": "calculator"}}, "max_turns": 2, "max_answer_tokens": 8}

Row = dict[str, Any]


class NoEffectError(Exception):
    """An option does not do what its row states."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise NoEffectError(what)


class Run:
    """What a run has left."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / "run_default"

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        return [read_step(self.path, step) for step in steps(self.path / BATCHES)]

    @cached_property
    def rows(self) -> list[list[Row]]:
        """Of each step."""
        return [batch["rows"] for batch in self.batches]

    @property
    def all_rows(self) -> list[Row]:
        return [row for rows in self.rows for row in rows]

    @cached_property
    def numbers(self) -> list[dict[str, float]]:
        """Of each step, as the trainer has measured them."""
        lines = (self.path / "metrics.jsonl").read_text("utf-8").splitlines()
        return [*{line["step"]: line for line in map(json.loads, lines)}.values()]

    def tensors(self, version: int = NUM_STEPS) -> dict[str, torch.Tensor]:
        """Weights of a version, as they are published."""
        files = path_of(self.path / BROADCASTS, version).glob("*model.safetensors")
        return {name: each for file in files for name, each in load_file(file).items()}

    @property
    def lora(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(read(self.path / BROADCASTS, NUM_STEPS, adapters.CONFIG))
        return found

    @property
    def fates(self) -> Counter[str]:
        return Counter(fate for batch in self.batches for _, _, fate in batch["ledger"])

    @property
    def said(self) -> str:
        return "".join(file.read_text("utf-8") for file in sorted(self.directory.glob("*.log")))

    def has_bits_of(self, other: "Run") -> bool:
        """Whether rows, ledgers and the last weights are equal."""
        mine, theirs = self.tensors(), other.tensors()
        return (
            [(batch["rows"], batch["ledger"]) for batch in self.batches]
            == [(batch["rows"], batch["ledger"]) for batch in other.batches]
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )


Fact = Callable[[Run, Run], str]


@dataclass(frozen=True, slots=True)
class Option:
    """Settings that are switched on beside those of the example, and what they do."""

    name: str
    fact: Fact
    train: Mapping[str, Any] = field(default_factory=dict)
    infer: Mapping[str, Any] = field(default_factory=dict)
    orch: Mapping[str, Any] = field(default_factory=dict)
    against: str = ""
    """Name of the option that it is compared with; empty: the example."""
    moves_bits: bool = True
    model: str = "model"
    is_delayed: bool = False
    """Let what the processes do take a random time."""
    is_command: bool = False
    """By `rlcore grpo`."""
    has_server: bool = False
    """Beside a teacher's server."""


# ------------------------------------------------------------------------------------------------- what is to be seen


def listed(values: Sequence[object], form: str = "") -> str:
    return ", ".join(format(value, form) for value in values)


def ends(run: Run, name: str) -> tuple[float, float]:
    return run.numbers[0][name], run.numbers[-1][name]


def first_change(name: str) -> Fact:
    """A number of the first step in which it differs although its samples are the same."""

    def fact(run: Run, base: Run) -> str:
        for step in range(NUM_STEPS):
            require(run.rows[step] == base.rows[step], f"no {name} differs before the samples do")
            mine, theirs = run.numbers[step][name], base.numbers[step][name]
            if mine != theirs:
                return f"{name} of step {step}: {mine:.4f}, not {theirs:.4f}"
        raise NoEffectError(f"{name} is the same in each step")

    return fact


def halved_loss(run: Run, base: Run) -> str:
    mine, theirs = run.numbers[0]["loss"], base.numbers[0]["loss"]
    require(mine == theirs / 2, f"the loss of step 0 is {mine}, and {theirs} without")
    return f"loss of step 0: {mine / theirs:g} of that without"


def versions(run: Run, base: Run) -> str:
    found = [{row["version"] for row in rows} for rows in run.rows]
    require(found == [{max(0, step - 2)} for step in range(NUM_STEPS)], f"versions {found}")
    return f"versions {listed([version for each in found for version in each])}"


def first_done(run: Run, base: Run) -> str:
    groups = [[group for group, _, _ in batch["ledger"]] for batch in run.batches]
    require(sorted(group for step in groups for group in step) == [*range(24)], f"groups {groups}")
    step = next((step for step in range(NUM_STEPS) if groups[step] != [*range(4 * step, 4 * step + 4)]), None)
    require(step is not None, "every group is done in its turn")
    return f"step {step} trains groups {listed(groups[step or 0])}"


def replayed(run: Run, base: Run) -> str:
    require(run.has_bits_of(base), "other bits than those of the free run")
    return "EQUAL to free run"


def weights_whole(run: Run, base: Run) -> str:
    whole, low = run.tensors(), base.tensors()
    require(not any("lora" in name for name in whole) and all("lora" in name for name in low), "the same tensors")
    sizes = [sum(each.numel() for each in tensors.values()) for tensors in (whole, low)]
    return f"{sizes[0]:,} published numbers, not {sizes[1]:,}"


def rank(run: Run, base: Run) -> str:
    found = {min(each.shape) for each in run.tensors().values()}
    require(found == {4} == {run.lora["r"]}, f"ranks {found}")
    return f"rank {run.lora['r']}, not {base.lora['r']}"


def alpha(run: Run, base: Run) -> str:
    require((run.lora["lora_alpha"], base.lora["lora_alpha"]) == (64, 32), f"alpha {run.lora['lora_alpha']}")
    return first_change("grad_norm")(run, base)


def target_modules(run: Run, base: Run) -> str:
    require({name.split(".")[-3] for name in run.tensors()} == {"q_proj", "v_proj"}, f"{[*run.tensors()]}")
    return f"{len(run.tensors())} tensors, not {len(base.tensors())}"


def masked(run: Run, base: Run) -> str:
    found, without = ([each["masked"] for each in one.numbers] for one in (run, base))
    require(found[0] == 0 < max(found) and not any(without), f"masked {found}, and {without} without")
    return f"up to {max(found):.0%} masked, {max(without):.0%} without"


def taught(run: Run, base: Run) -> str:
    require("teacher_kl" not in base.numbers[0], "the base has a teacher")
    first, last = ends(run, "teacher_kl")
    require(first != 0 and math.isfinite(last), f"teacher_kl {first}")
    return f"`teacher_kl` {first:.3f}, then {last:.3f}"


def distilled(run: Run, base: Run) -> str:
    require(not any(row["reward"] or row["advantage"] for row in run.all_rows), "there are rewards")
    far, further = (distance_to_teacher(one, base.rows[0]) for one in (run, base))
    require(far < further, f"the last policies are {far} and {further} from the teacher")
    return f"no rewards; {far:.2f} nats from teacher, {further:.2f} without"


@torch.no_grad()
def distance_to_teacher(run: Run, rows: Sequence[Row]) -> float:
    """Return the divergence of the last policy from the teacher, over the whole vocabulary, on some samples."""
    scratch, found = run.directory.parent, list[torch.Tensor]()
    policy = adapters.load(load(scratch / "model"), path_of(run.path / BROADCASTS, NUM_STEPS))
    teacher = load(scratch / "teacher")
    for row in rows:
        tokens = torch.tensor([row["tokens"][:-1]])
        mine, theirs = (each.logits(each.hidden(tokens)).log_softmax(-1) for each in (policy, teacher))
        found.append((mine.exp() * (mine - theirs)).sum(-1)[0, row["num_prompt"] - 1 :])
    return float(torch.cat(found).mean())


def served_teacher(run: Run, base: Run) -> str:
    server = f"127.0.0.1:{run_settings(run, 'teacher')['port']}"
    require(server in run.said and server not in base.said, "no server was there")
    return "EQUAL to local teacher"


def noisy(run: Run, base: Run) -> str:
    clean = dict(load(run.directory.parent / "model").requires_grad_(False).named_parameters())
    version = NUM_STEPS - 1
    norms = load_file(path_of(run.path / BROADCASTS, version) / NORMS)
    added = torch.cat([each - clean[name] for name, each in norms.items()])
    about = run_settings(run, "train")["noise_scheduler"]
    sizes = {"start": about["sigma_start"], "end": about["sigma_end"], "num_stages": about["num_stages"]}
    sigma, found = noise_sigma(version, num_steps=NUM_STEPS, **sizes), float(added.std())
    require(0.7 < found / sigma < 1.3, f"noise of {found}, and sigma is {sigma}")
    require(not (path_of(base.path / BROADCASTS, version) / NORMS).exists(), "the base has noise")
    return f"samplers' norms: noise {found:.4f}, sigma {sigma:.4f}"


def run_settings(run: Run, role: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run.directory / f"{role}.yaml").read_text("utf-8"))
    return found


def same_gradient(run: Run, base: Run) -> str:
    require(run.numbers[0]["grad_norm"] == base.numbers[0]["grad_norm"], "the first gradients differ")
    return f"same first gradient, weights {distance(run, base):.3f} apart"


def distance(run: Run, base: Run) -> float:
    mine, theirs = run.tensors(), base.tensors()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def decayed(run: Run, base: Run) -> str:
    sizes = [
        math.fsum(float(each.square().sum()) for name, each in one.tensors().items() if "lora_A" in name) ** 0.5
        for one in (run, base)
    ]
    require(sizes[0] < sizes[1], f"norms {sizes}")
    return f"norm of A: {sizes[0]:.3f}, not {sizes[1]:.3f}"


def rates(expected: Sequence[float]) -> Fact:
    def fact(run: Run, base: Run) -> str:
        found = [each["learning_rate"] for each in run.numbers]
        at = (0, 2, 5)
        require(all(map(math.isclose, [found[step] for step in at], expected)), f"rates {found}")
        return f"rates {listed([found[step] for step in at], '.2g')}"

    return fact


def temperatures(*expected: float) -> Fact:
    def fact(run: Run, base: Run) -> str:
        found = [rows[0]["temperature"] for rows in run.rows]
        require(all(row["temperature"] == found[step] for step, rows in enumerate(run.rows) for row in rows), "mixed")
        require([found[0], found[-1]] == [expected[0], expected[-1]], f"temperatures {found}")
        return f"{listed([found[step] for step in (0, 2, 5)], '.2g')}"

    return fact


def shares(run: Run, base: Run) -> str:
    groups = Counter(task for task, _ in {(row["task"], row["group"]) for row in run.all_rows})
    require(groups == {0: 8, 1: 16}, f"groups {groups}")
    return f"{groups[0]} and {groups[1]} groups"


def surplus(run: Run, base: Run) -> str:
    require(run.fates == {"trained": 24, "surplus": 24}, f"{run.fates}")
    return "24 groups trained, 24 surplus"


def filtered(run: Run, base: Run) -> str:
    means = defaultdict[int, list[float]](list)
    for row in run.all_rows:
        means[row["group"]].append(row["reward"])
    require(run.fates["filtered"] and all(0 < sum(each) / len(each) < 1 for each in means.values()), f"{run.fates}")
    return f"{run.fates['filtered']} of {run.fates.total()} groups filtered"


def left_out(run: Run, base: Run) -> str:
    gone = {(task, id): batch["step"] for batch in reversed(run.batches) for task, id in batch["left_out"]}
    late = [row for row in run.all_rows if row["version"] > gone.get((row["task"], row["prompt"]), NUM_STEPS)]
    in_base = {
        row["group"] for row in base.all_rows if row["version"] > gone.get((row["task"], row["prompt"]), NUM_STEPS)
    }
    require(gone and not late and in_base, f"{len(gone)} left out, {len(late)} drawn, {len(in_base)} without")
    return f"{len(gone)} of 12 prompts leave, {len(in_base)} draws without"


def by_length(run: Run, base: Run) -> str:
    def most(one: Run) -> float:
        sums = defaultdict[int, list[float]](list)
        for row in one.all_rows:
            sums[row["group"]].append(row["advantage"] * len(row["mask"]))
        return max(abs(math.fsum(each)) for each in sums.values())

    require(most(run) < 1e-9 < most(base), f"{most(run)} and {most(base)}")
    return f"advantage times length sums to 0, {most(base):.2f} without"


def signs(rewards: Sequence[float], lengths: Sequence[int], size: float) -> list[float]:
    """An advantage of one's own: above or below the mean."""
    mean = math.fsum(rewards) / len(rewards)
    return [size * ((reward > mean) - (reward < mean)) for reward in rewards]


def of_signs(run: Run, base: Run) -> str:
    found = sorted({row["advantage"] for row in run.all_rows})
    require(found == [-2.0, 0.0, 2.0] != sorted({row["advantage"] for row in base.all_rows}), f"advantages {found}")
    return f"advantages {listed(found, 'g')}"


def flagged(name: str) -> Fact:
    def fact(run: Run, base: Run) -> str:
        found = [row for row in run.all_rows if row["flags"] == [name]]
        require(0 < len(found) < 96 and not any(any(row["mask"]) for row in found), f"{len(found)} are flagged")
        tokens = sum(sum(row["mask"]) for row in run.all_rows)
        require(tokens == sum(each["tokens"] for each in run.numbers), "others are trained")
        return f"{len(found)} of 96 samples not trained"

    return fact


def evaluated(run: Run, base: Run) -> str:
    found = {step: json.loads(read(run.path / EVALUATIONS, step, METRICS)) for step in steps(run.path / EVALUATIONS)}
    require([*found] == [0, 3, 6] and not steps(base.path / EVALUATIONS), f"evaluations {found}")
    return f"held out {listed([each['held'] for each in found.values()], '.3f')}; EQUAL"


def kept(*expected: int) -> Fact:
    def fact(run: Run, base: Run) -> str:
        found = sorted(
            int(each.name.removeprefix("step-")) for each in (run.path / CHECKPOINTS).glob("step-*") if each.is_dir()
        )
        require(found == [*expected], f"checkpoints {found}")
        return f"checkpoints {listed(found)}; EQUAL"

    return fact


def said(text: str, shows: str) -> Fact:
    def fact(run: Run, base: Run) -> str:
        require(text in run.said and text not in base.said, f"{text!r} is not said")
        return f"{shows}; EQUAL"

    return fact


def calls(run: Run, base: Run) -> str:
    num_calls = 0
    for row in run.all_rows:
        own = row["tokens"][row["num_prompt"] :]
        text, policy = WORDS.decode(own), WORDS.decode([t for t, mask in zip(own, row["mask"], strict=True) if mask])
        answers = sum(not after and before for before, after in pairwise(row["mask"]))
        num_calls += answers
        require(len(text) > len(policy) if answers else text == policy, f"{text!r} has a trained answer")
        require(ANSWER in text and ANSWER not in policy if CALL in text else True, f"{text!r}")
    require(num_calls > 48, f"{num_calls} calls")
    return f"{num_calls} tool answers, none trained"


# -------------------------------------------------------------------------------------------------------- the options

TEACHER = {"model": {"name": "teacher"}}
NOISE = {"enabled": True, "sigma_start": 0.05, "sigma_end": 0.01, "num_stages": 3}


def bounds(kind: str) -> dict[str, float]:
    """Narrow bounds of ratios."""
    return {f"{kind}_mask_low": 0.98, f"{kind}_mask_high": 1.02}


OPTIONS: Sequence[Option] = (
    Option("max_async_level: 2", versions, orch={"max_async_level": 2}),
    Option(
        "mode: free",
        first_done,
        orch={"mode": "free", "max_async_level": 3, "max_off_policy_steps": 3},
        is_delayed=True,
    ),
    Option(
        "mode: replay",
        replayed,
        orch={"mode": "replay", "schedule": "mode: free", "max_off_policy_steps": 3},
        against="mode: free",
        moves_bits=False,
    ),
    Option("lora: false", weights_whole, train={"lora": False}, infer={"enable_lora": False}),
    Option("lora_rank: 4", rank, train={"lora_rank": 4}, orch={"model": {"lora_rank": 4}}),
    Option("lora_alpha: 64", alpha, train={"lora_alpha": 64}, orch={"model": {"lora_alpha": 64}}),
    Option("lora_target_modules", target_modules, train={"lora_target_modules": ["q_proj", "v_proj"]}),
    Option("loss.ratio_type: sequence", first_change("loss"), train={"loss": {"ratio_type": "sequence"}}),
    Option(
        "loss.sequence_clip_high",
        first_change("loss"),
        train={"loss": {"ratio_type": "sequence", "sequence_clip_high": 1.0}},
        against="loss.ratio_type: sequence",
    ),
    Option("loss.kl_tau: 0.5", first_change("loss"), train={"loss": {"kl_tau": 0.5}}),
    Option("loss.adv_tau: 0.5", halved_loss, train={"loss": {"adv_tau": 0.5}}),
    Option("loss.token_mask_*", masked, train={"loss": bounds("token")}),
    Option("loss.geo_mask_*", masked, train={"loss": bounds("geo")}),
    Option("loss.sequence_mask_*", masked, train={"loss": bounds("sequence")}),
    Option("loss.teacher_tau: 0.5", taught, train={"loss": {"teacher_tau": 0.5}}, orch={"teacher_model": TEACHER}),
    Option(
        "teacher_model.client",
        served_teacher,
        train={"loss": {"teacher_tau": 0.5}},
        orch={"teacher_model": TEACHER},
        against="loss.teacher_tau: 0.5",
        moves_bits=False,
        has_server=True,
    ),
    Option(
        "buffer.skip_verification",
        distilled,
        train={"loss": {"adv_tau": 0.0, "teacher_tau": 1.0}},
        orch={"teacher_model": TEACHER, "buffer": {"skip_verification": True}},
    ),
    Option("noise_scheduler", noisy, train={"noise_scheduler": NOISE}),
    Option("max_grad_norm: 0.01", same_gradient, train={"max_grad_norm": 0.01}),
    Option("weight_decay: 1.0", decayed, train={"weight_decay": 1.0}),
    Option(
        "lr_scheduler_type: cosine",
        rates((0.01, 0.0075, 0.005 * (1 - 0.75**0.5))),
        train={"lr_scheduler_type": "cosine"},
    ),
    Option("warmup_steps: 3", rates((0.01 / 3, 0.01, 0.01)), train={"warmup_steps": 3}),
    Option("sampling.temperature: 0.5", temperatures(0.5), orch={"sampling": {"temperature": 0.5}}),
    Option(
        "sampling.temp_scheduler",
        temperatures(1.2, 0.6),
        orch={
            "sampling": {"temp_scheduler": {"type": "cosine", "start_temperature": 1.2, "end_temperature": 0.6}},
        },
    ),
    Option(
        "buffer.env_ratios: [1, 2]",
        shares,
        orch={
            "env": [ENV, {"id": "reverse-text", "args": {**ENV["args"], "max_length": 3}}],
            "buffer": {"env_ratios": [1, 2]},
        },
    ),
    Option("oversampling_factor: 2", surplus, orch={"oversampling_factor": 2.0}),
    Option(
        "buffer.online_difficulty_filtering",
        filtered,
        orch={"oversampling_factor": 2.0, "buffer": {"online_difficulty_filtering": True}},
        against="oversampling_factor: 2",
    ),
    Option("buffer.easy_threshold", left_out, orch={"buffer": {"easy_threshold": 0.03}}),
    Option("buffer.hard_threshold", left_out, orch={"buffer": {"hard_threshold": 0.0}}),
    Option("advantage.length_weighted_mean", by_length, orch={"advantage": {"length_weighted_mean": True}}),
    Option(
        "advantage.type: custom",
        of_signs,
        orch={
            "advantage": {
                "type": "custom",
                "import_path": "tests.benchmarks.asynchronous_options.signs",
                "kwargs": {"size": 2.0},
            },
        },
    ),
    Option(
        "filters: gibberish",
        flagged("gibberish"),
        orch={"filters": [{"type": "gibberish", "enforce": True, "token_id_threshold": 20, "logprob_offset": 0.2}]},
    ),
    Option(
        "filters: repetition",
        flagged("repetition"),
        orch={"filters": [{"type": "repetition", "enforce": True, "window": 3, "prob_threshold": 0.035}]},
    ),
    Option(
        "tools",
        calls,
        orch={
            "env": [{"id": "products", "args": {**ENV["args"], "environment": TOOLS}}],
            "sampling": {"max_tokens": 20},
        },
        model="words",
    ),
    Option(
        "eval",
        evaluated,
        orch={"eval": {"env": [{**ENV, "name": "held"}], "interval": 3, "rollouts_per_example": 4}},
        moves_bits=False,
    ),
    Option("ckpt.keep_last: 2", kept(5, 6), orch={"ckpt": {"interval": 1, "keep_last": 2}}, moves_bits=False),
    Option(
        "ckpt.keep_interval: 3",
        kept(3, 6),
        orch={"ckpt": {"interval": 1, "keep_last": 1, "keep_interval": 3}},
        moves_bits=False,
    ),
    Option("dp: 2", said("infer.1: serving", "two samplers"), infer={"dp": 2}, moves_bits=False, is_command=True),
    Option("gpus: 2", said("2 ranks", "two ranks"), train={"gpus": 2}, moves_bits=False, is_command=True),
)


# ----------------------------------------------------------------------------------------------------------- the runs


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others over them, section by section."""
    found = dict(below)
    for key, value in above.items():
        is_section = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if is_section else value
    return found


def write_files(run: Path, option: Option | None) -> dict[str, Path]:
    """Write the three files of a run of the example, with an option."""
    scratch, port = run.parent, free_port()
    model, output = str(scratch / (option.model if option else "model")), str(run / "run_default")
    places: Mapping[str, Mapping[str, Any]] = {
        "train": {"model": model, "output_dir": str(run)},
        "infer": {"model": model, "output_dir": output, "port": port},
        "orch": {
            "model": {"name": model},
            "output_dir": output,
            "client": {"base_url": [f"http://127.0.0.1:{port}/v1"]},
        },
    }
    run.mkdir()
    files = {}
    for role, example in EXAMPLE.items():
        settings = merged(merged(yaml.safe_load(example), SMALL[role]), places[role])
        settings = merged(settings, getattr(option, role) if option else {})
        if "teacher_model" in settings:
            settings["teacher_model"] = {"model": {"name": str(scratch / "teacher")}}
        if settings.get("schedule"):
            settings["schedule"] = str(scratch / directory_of(settings["schedule"]) / "run_default")
        files[role] = run / f"{role}.yaml"
        files[role].write_text(yaml.safe_dump(settings), "utf-8")
    return files


def directory_of(name: str) -> str:
    return re.sub(r"\W+", "_", name) or "example"


@contextmanager
def teacher_server(run: Path, files: Mapping[str, Path]) -> Iterator[None]:
    """Serve the teacher's checkpoint, for the orchestrator of these files."""
    port = free_port()
    own = {"model": str(run.parent / "teacher"), "enable_lora": False, "output_dir": str(run / "teacher"), "port": port}
    file = run / "teacher.yaml"
    file.write_text(yaml.safe_dump(own), "utf-8")
    orch = yaml.safe_load(files["orch"].read_text("utf-8"))
    orch["teacher_model"]["client"] = {"base_url": [f"http://127.0.0.1:{port}/v1"]}
    files["orch"].write_text(yaml.safe_dump(orch), "utf-8")
    pid = fork("infer", file)
    try:
        yield
        require(waitpid(pid, WNOHANG) == (0, 0), "the teacher's server has ended")
    finally:
        with suppress(ProcessLookupError):
            kill(pid, SIGKILL)
        with suppress(ChildProcessError):
            waitpid(pid, 0)


def make_run(scratch: Path, option: Option | None) -> Run:
    """Run the example to its end, with an option."""
    run = scratch / directory_of(option.name if option else "")
    get_ready(scratch)
    files = write_files(run, option)
    if option and option.is_command:
        command = [sys.executable, "-m", "rlcore.commands", "grpo"]
        command += [part for role, file in files.items() for part in (f"--{role}", str(file))]
        with (run / "grpo.log").open("w", encoding="utf-8") as log:
            done = subprocess.run(command, stdout=log, stderr=log, timeout=300, check=False, env={**environ})
        require(done.returncode == 0, (run / "grpo.log").read_text("utf-8")[-3000:])
    elif option and option.has_server:
        with teacher_server(run, files):
            complete(files)
    else:
        complete(files, delays=1 if option and option.is_delayed else None)
    return Run(run)


@cache
def get_ready(scratch: Path) -> None:
    """Look at the operations of this machine, and write the policy of all runs, a teacher, and a caller of tools."""
    prepare()
    scratch.mkdir(exist_ok=True)
    make_model(scratch / "model")
    teacher = Decoder(CONFIG).initialise(2)
    with torch.no_grad():
        teacher.embedding.mul_(8.0)  # it prefers some characters to others
    save(teacher, scratch / "teacher")
    CharacterTokenizer(alphabet("reverse_text")).save(scratch / "teacher")
    with ProcessPoolExecutor(1, get_context("fork")) as pool:  # its threads forbid forks
        pool.submit(make_caller, scratch / "words").result()


def make_caller(path: Path) -> None:
    """Write a policy that has learned one call by heart, and an answer after it."""
    config = DecoderConfig("qwen3", WORDS.vocab_size, 32, 1, 2, 1, 16, 64, max_length=LENGTH)
    decoder = Decoder(config).initialise(1)
    texts = [f"{left}*{right}=" for left in range(10, 100, 7) for right in range(11, 100, 9)]
    tokens = torch.tensor([[*WORDS.encode(text + CALL + ANSWER + "42"), WORDS.eos_id] for text in texts])
    optimizer = torch.optim.Adam(decoder.parameters(), 0.01)
    first = len(texts[0]) - 1
    for _ in range(120):
        logits = decoder.logits(decoder.hidden(tokens[:, :-1]))
        loss = -token_logprobs(logits, tokens[:, 1:])[:, first:].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    save(decoder, path)
    WORDS.save(path)


def observe(option: Option, run: Run, base: Run) -> str:
    """Return what an option has done, compared with a run without it. Raises NoEffectError."""
    is_equal = run.has_bits_of(base)
    if option.moves_bits:
        require(not is_equal, "no bit of samples and weights differs: the option is ignored")
    else:
        require(is_equal, "samples or weights differ, and the option is of the runtime")
    return option.fact(run, base)


def chosen(names: Sequence[str]) -> list[Option]:
    """Return the options whose names have a text, all without texts, and those that they are compared with."""
    found = {each.name for each in OPTIONS if not names or any(name in each.name for name in names)}
    found |= {each.against for each in OPTIONS if each.name in found}
    return [each for each in OPTIONS if each.name in found]


def render(page: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return the page with the table of rows."""
    lines = ["|switched on|what the run shows|", "|---|---|", *(f"|`{row['option']}`|{row['shows']}|" for row in rows)]
    return TABLE.sub(lambda match: "\n".join([match[1].rstrip(), *lines, match[2]]), page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of options; without any, all")
    parser.add_argument("--directory", type=Path, help="a new directory, in which the runs are kept")
    parser.add_argument("--write", action="store_true", help="store the rows, and write the table of the page")
    given = parser.parse_args()
    hold_mkl_mode(environ)
    torch.set_num_threads(1)
    faults, rows = list[str](), list[dict[str, str]]()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.directory or Path(temporary)
        runs = {"": make_run(scratch, None)}
        for option in chosen(given.names):
            try:
                runs[option.name] = make_run(scratch, option)
                shows = observe(option, runs[option.name], runs[option.against])
                rows.append({"option": option.name, "shows": shows})
                print(f"{option.name}: {shows}", flush=True)
            except (NoEffectError, AssertionError, OSError, KeyError) as error:
                faults.append(f"{option.name}: {type(error).__name__}: {error}")
                print(f"FAULT {faults[-1]}", flush=True)
    if given.write:
        stored = json.loads(RESULTS.read_text("utf-8"))["rows"] if RESULTS.exists() else []
        by_name = {row["option"]: row for row in [*stored, *rows]}
        rows = [by_name[option.name] for option in OPTIONS if option.name in by_name]
        about = {"date": date.today().isoformat(), "machine": machine(), "rows": rows}
        RESULTS.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        PAGE.write_text(render(PAGE.read_text("utf-8"), rows), "utf-8")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
