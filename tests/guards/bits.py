"""Bits: every value that the base records of a run, the head records under the same name with the same digest.

The base records with its own harness, and the head's `diff` compares. The values are also compared here, by a reader
of the format's page alone: a head that records less, or whose `diff` overlooks something, is red.
"""

import json
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.guards import base
from tests.guards.guard import ROOT, Context, Row, in_parallel, python_of, rlharness

ON_RAY = {"deployment.backend": "ray", "deployment.num_ranks": "2"}
SHARDED = {**ON_RAY, "deployment.sharding": "full"}
HYBRID = {**SHARDED, "deployment.num_ranks": "4", "deployment.sharding": "hybrid", "deployment.num_copies": "2"}
VLLM = {"sampler.name": "vllm"}
SCENARIOS = ("grpo_sorting", "grpo_reverse_text", "ppo_arithmetic", "grpo_recommendation")
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.2}
ALGORITHMS: dict[str, Mapping[str, str | float]] = {
    "gspo": {"loss": "gspo", "advantage": "grpo", "aggregation": "seq-mean-token-mean", "kl_coef": 0.05, **CLIP},
    "cispo": {
        "loss": "cispo",
        "advantage": "dr_grpo",
        "aggregation": "seq-mean-token-sum-norm",
        "entropy_coef": 0.01,
        **CLIP,
    },
    "dppo": {"loss": "dppo_tv", "advantage": "reinforce_pp_baseline", "aggregation": "seq-mean-token-sum"},
    "ipo": {"loss": "ipo", "advantage": "remax", "aggregation": "token-mean"},
    "masked-is": {"loss": "masked_is", "advantage": "rloo", "kl_coef": 0.05, "kl_estimator": "k2"},
}
"""Sections `algorithm` of GRPO, whole: a setting that the scenario has may not go with the loss."""
LOGICAL, PHYSICAL, SHARD = 0, 1, 2
SCOPES = {LOGICAL: "logical", PHYSICAL: "physical", SHARD: "shard"}


@dataclass(frozen=True, slots=True)
class Case:
    """One run, of the base and of the head."""

    scenario: str
    size: str = "tiny"
    where: str = "in one process"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    base_settings: Mapping[str, str] = field(default_factory=dict)
    """Of the base alone: a backend that only it has."""
    patch: str = ""
    """Of the base alone: what moved these bits, a file of `base.MOVED`."""

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.size} {self.where}"

    @property
    def needs_vllm(self) -> bool:
        return self.scenario == "grpo_reward_model" or "vllm" in self.settings.values()

    def words(self, *, is_base: bool) -> list[str]:
        """Return the words of the command, but for --out."""
        settings = {**self.settings, **(self.base_settings if is_base else {})}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return ["train", self.scenario, "--size", self.size, *self.options, *sets]


QUICK = (
    *map(Case, SCENARIOS),
    Case("grpo_reverse_text", where="on Ray, two shards", settings=SHARDED),
    Case("grpo_reverse_text", "ties", patch="bf16_masters.patch"),
    Case("ppo_arithmetic", where="on Ray, two copies of two shards", settings=HYBRID),
    Case("grpo_reverse_text", where="with vLLM", settings=VLLM),
)


def cases() -> Iterator[Case]:
    """Yield every case, the quick ones first."""
    yield from QUICK
    yield from (each for each in _slow_cases() if each not in QUICK)


def _slow_cases() -> Iterator[Case]:
    for scenario in SCENARIOS:
        yield Case(scenario, "smoke")
        for size in ("tiny", "smoke"):
            yield Case(scenario, size, "on Ray, two shards", SHARDED)
        yield Case(scenario, where="on Ray, two ranks", settings=ON_RAY)
        yield Case(scenario, where="on Ray, two copies of two shards", settings=HYBRID)
        yield Case(
            scenario,
            where="in child processes, on Ray",
            settings=SHARDED,
            base_settings={"deployment.backend": "processes"},
        )
    for scenario in SCENARIOS[:3]:
        for size in ("tiny", "smoke"):
            yield Case(scenario, size, "with vLLM", VLLM)
    for size in ("tiny", "smoke"):
        yield Case("grpo_reward_model", size)
    for level in ("deterministic", "off"):
        yield Case("grpo_reverse_text", where=f"at level {level}", options=("--level", level))
    updates = {"training.num_epochs": "2", "training.num_minibatches": "2"}
    yield Case("ppo_arithmetic", where="in two epochs of two minibatches", settings=updates)
    for name, algorithm in ALGORITHMS.items():
        settings = {"algorithm": json.dumps({"name": "grpo", **algorithm})}
        yield Case("grpo_reverse_text", where=f"with {name}", settings=settings)


def rows(context: Context) -> Iterator[Row]:
    """Compare each run of the head with that of the base."""
    chosen = QUICK if context.is_quick else tuple(cases())
    return in_parallel(lambda case: compared(case, context.work), chosen)


def compared(case: Case, work: Path, head: Path = ROOT) -> Row:
    """Record a case with both, and compare."""
    python = python_of("vllm") if case.needs_vllm else python_of("")
    if python is None:
        return Row(case.name, missing="vLLM's environment")
    name = re.sub(r"\W+", "-", case.name)
    try:
        old = base.kept(f"bits-{name}-{digest(case)}{case.patch}", lambda out: record(case, out, python))
        new = work / name
        record(case, new, python, head)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Row(case.name, str(error))
    done = rlharness("diff", str(old), str(new), cwd=work, env=base.environment(head), python=python)
    problem, num_added = difference(old, new)
    if not problem and done.returncode and not num_added:  # `diff` names a value that only one of two runs has
        problem = f"diff ended with {done.returncode}: {done.stdout[:300]}{done.stderr[-300:]}"
    return Row(case.name, problem)


def digest(case: Case) -> str:
    """Return what the base's recording depends on, in short: another command records anew."""
    return sha256(repr(case.words(is_base=True)).encode()).hexdigest()[:8]


def record(case: Case, out: Path, python: str, head: Path | None = None) -> None:
    """Train and record with this checkout, or with the base; RuntimeError if the run does not end with 0."""
    words = [*case.words(is_base=head is None), "--out", str(out)]
    env = base.environment(head or base.worktree(case.patch))
    if "deterministic" in case.options:  # which refuses a hash seed drawn at random
        env["PYTHONHASHSEED"] = "0"
    done = rlharness(*words, cwd=out.parent, env=env, python=python)
    if done.returncode:
        side = "head" if head else "base"
        raise RuntimeError(f"the {side} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")


def difference(old: Path, new: Path) -> tuple[str, int]:
    """Return the first value of the base that the head lacks or has with another digest, and how many it adds."""
    identities = [fingerprint(trace).get("identity", {}) for trace in (old, new)]
    for part in sorted(identities[0].keys() & identities[1].keys()):
        if identities[0][part] != identities[1][part]:
            return f"identity {part}: {identities[0][part]} in the base, {identities[1][part]} in the head", 0
    a, b = values(old), values(new)
    if not a:
        return "the base recorded no value", 0
    for key, found in a.items():
        if b.get(key) != found:
            step, scope, phase, value, occurrence, rank = key
            of_rank = f" of rank {rank}" if scope != LOGICAL else ""
            name = f"step {step}, {SCOPES[scope]} {phase} {value} #{occurrence}{of_rank}"
            num = sum(b.get(each) != a[each] for each in a)
            return f"{name}: {found} in the base, {b.get(key, 'absent')} in the head; {num} of {len(a)} differ", 0
    if steps := {key[0] for key in b} - {key[0] for key in a}:
        return f"steps {sorted(steps)} are the head's alone", 0
    return "", len(b) - len(a)


def fingerprint(trace: Path) -> dict[str, dict[str, str]]:
    """Return the fingerprint of a trace."""
    found: dict[str, dict[str, str]] = json.loads((trace / "manifest.json").read_text("utf-8"))["fingerprint"]
    return found


Key = tuple[int, int, str, str, str, int]
"""Step, scope, phase, name, occurrence, rank; -1 for the rank of a logical value, which one of the ranks records."""


def values(trace: Path) -> dict[Key, str]:
    """Return dtype, shape, algorithm and digest of each value of a complete trace, but for contexts.

    If ranks disagree on a logical value, all that they recorded.
    """
    found: dict[Key, str] = {}
    for log in sorted(trace.glob("rank-*.log")):
        rank, data = int(log.stem.partition("-")[2]), log.read_bytes()
        assert data[:12] == b"rlhtrace" + struct.pack("<I", 1), f"{log}: not a log of format 1"
        at, is_closed = 12, False
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            payload, at = data[at + 4 : at + 4 + length], at + 4 + length + 8
            is_closed = payload[:4] == b"DONE"
            if not is_closed:
                for key, value in values_of_step(payload, rank):
                    found[key] = value if found.get(key, value) == value else f"{found[key]}, {value}"
        assert is_closed, f"{log} was not closed"
    return found


def values_of_step(payload: bytes, rank: int) -> Iterator[tuple[Key, str]]:
    """Yield the values of a frame."""
    (step,), (num,) = struct.unpack_from("<Q", payload, 4), struct.unpack_from("<I", payload, 44)
    scopes, digests = payload[48 : 48 + num], payload[48 + num : 48 + 17 * num]
    at = 48 + 21 * num
    for index in range(num):
        fields = []
        for _ in range(6):
            (length,) = struct.unpack_from("<I", payload, at)
            fields.append(payload[at + 4 : at + 4 + length].decode())
            at += 4 + length
        if scopes[index] in SCOPES:
            phase, name, occurrence, *form = fields
            key = (step, scopes[index], phase, name, occurrence, rank if scopes[index] != LOGICAL else -1)
            yield key, " ".join([*form, digests[16 * index : 16 * index + 16].hex()])
