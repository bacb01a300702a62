"""Mistakes that others made are planted into runs, which find them; the same runs without them are silent.

    tests.support.planted_run ──a line for each case──▶ how it ended, what it said, what the audit says

Each check is needed: with it off, the mistake passes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlcore import train as page
from rlcore.checks import Checks
from rlcore.config import read_config
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.entrypoint import train
from rlcore.errors import LevelError, RlcoreError, StepError
from rlcore.log import NullRecorder
from rlcore.types import SampleRequest, Tokenizer
from tests.rlcore.asynchronous.test_runs import program
from tests.support.asynchronous_run import make_model

SILENT = ""
PREFIX = "follows other tokens"
DIGEST = "a sampler has answered for version 1 with weights"
AT_ONCE, LATER = ("step 0: rollout or forward: the log-prob", "step 2: rollout or forward: the log-prob")
SAID, SAID_LATER = "step 0: the log-probability by weights 0 is not", "step 2: the log-probability by weights 1 is not"
QUICK: Mapping[str, str] = {
    ",": SILENT,
    "asked_by_text,": AT_ONCE,
    "keeps_and_answers,lora": LATER,
    "sampler_at_one,cooler": AT_ONCE,
}
"""What is to be seen of each case; by default one version ahead, at level invariant."""
SLOW: Mapping[str, str] = {
    **dict.fromkeys([",lora", ",lora+A=0", ",cooler", ",cooling", ",off", ",cooler+off", ",free"], SILENT),
    "prompt_of_text,": PREFIX,
    "trained_by_text,": AT_ONCE,
    "trained_by_text,off": SAID,
    "asked_by_text+-logprobs,": SILENT,
    "trained_by_text+-logprobs,": SILENT,
    "keeps_the_first,lora": DIGEST,
    "keeps_the_first+-digests,lora": LATER,
    "keeps_the_first+-digests+-earlier,lora": SILENT,
    "keeps_and_answers,lora+A=0": "step 1: rollout or forward: the log-prob",
    "keeps_and_answers+-earlier,lora": SILENT,
    "keeps_and_answers,lora+off": SAID_LATER,
    "never_loads,lora": LATER,
    "sampler_at_one,cooler+off": SAID,
    "trainer_at_one,cooler": AT_ONCE,
    "sampler_at_one+-logprobs,cooler": SILENT,
    "sampler_at_the_first,cooling": LATER,
    "sampler_at_the_first+-earlier,cooling": SILENT,
    "sampler_at_the_first,cooling+off": SAID_LATER,
}


def faults_of(found: dict[str, Any]) -> str:
    """All that a run has said of a mistake."""
    said = [line for line in found["said"].splitlines() if "sampler" in line or "log-probability" in line]
    return "\n".join([found["ended"], *said])


SLOW_PARTS = [dict([*SLOW.items()][first : first + 6]) for first in range(0, len(SLOW), 6)]
"""Each ends within the time of a test, also where others work on this machine."""


@pytest.mark.parametrize("cases", [QUICK, *(pytest.param(each, marks=pytest.mark.full) for each in SLOW_PARTS)])
def test_runs_find_mistakes_and_say_nothing_without_them(tmp_path: Path, cases: Mapping[str, str]) -> None:
    lines = program(str(tmp_path), *cases, module="tests.support.planted_run").splitlines()
    found = {each["case"]: each for each in map(json.loads, lines)}
    assert found.keys() == cases.keys()
    for case, expected in cases.items():
        said = faults_of(found[case])
        assert expected in said, case
        assert bool(said.strip()) == bool(expected), (case, said)
        assert found[case]["audit"] in ([], ["every group once"]), "what is trained is wrong, and the ledger is not"


# ---------------------------------------------------------------------------------------------------- synchronous page


def trained(directory: Path, level: str = "invariant") -> list[dict[str, Any]]:
    config = {
        "model": {"path": str(make_model(directory / "model"))},
        "task": {"name": "reverse_text", "num_prompts": 16, "num_heldout": 4},
        "warm_start": {"num_steps": 0},
        "sampling": {"max_tokens": 8, "temperature": 0.5},
        "algorithm": {"name": "grpo"},
        "training": {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
    }
    train(read_config(config), level=level, directory=directory / "page", recorder=NullRecorder())
    lines = (directory / "page" / "metrics.jsonl").read_text("utf-8").splitlines()
    return [each for each in map(json.loads, lines) if "mismatch/num_tokens" in each]


def by_text(trajectories: Iterable[Trajectory], tokenizer: Tokenizer, *, keeps_end: bool) -> list[Trajectory]:
    """Completions whose tokens are those of their texts, with log-probabilities that are cut, or padded with 0."""
    found = []
    for each in trajectories:
        (turn,) = each.assistant_turns
        ends = [tokenizer.eos_id] if keeps_end and each.tokens[-1] == tokenizer.eos_id else []
        tokens = [*tokenizer.encode(turn.text), *ends] or list(each.completion_tokens)
        (weights,) = each.weights_digests.items()
        logprobs = [*each.completion_logprobs, *[0.0] * len(tokens)][: len(tokens)]
        assert turn.stop_reason is not None
        about = partial(build_single_turn, text=turn.text, stop_reason=turn.stop_reason)
        found.append(about(each.request, tokens, logprobs, policy_version=weights[0], weights_digest=weights[1]))
    return found


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    collect, read_tokens = page.collect, page.read_tokens

    def collected(state: page.TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
        return by_text(collect(state, wanted), state.tokenizer, keeps_end=name == "tokens within")

    if name.startswith("tokens"):
        monkeypatch.setattr(page, "collect", collected)
    elif name == "temperature":
        monkeypatch.setattr(page, "read_tokens", lambda _, *rest: read_tokens(1.0, *rest))


PAGE: Mapping[str, tuple[str, type[RlcoreError], str]] = {
    "tokens": ("after", StepError, "tokens of at most 8, the last"),
    "tokens within": ("before", LevelError, "the trainer's log-probability is not the sampler's"),
    "temperature": ("before", LevelError, "the trainer's log-probability is not the sampler's"),
}


@pytest.mark.parametrize("name", PAGE)
def test_the_synchronous_page_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    check, error, said = PAGE[name]
    plant(monkeypatch, name)
    other = {"before": "after", "after": "before"}[check]
    monkeypatch.setattr(Checks, other, lambda *_: None)
    with pytest.raises(error, match=said):
        trained(tmp_path / "found")
    monkeypatch.setattr(Checks, check, lambda *_: None)
    assert len(trained(tmp_path / "unchecked")) == 2, "without the check it passes"


def test_the_synchronous_page_is_silent_without_them(tmp_path: Path) -> None:
    assert [each["mismatch/num_tokens"] for each in trained(tmp_path)] == [0, 0]


def test_at_other_levels_the_metrics_say_how_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each.get("mismatch/max_nats", 0.0) < 1e-4 for each in trained(tmp_path / "healthy", "off"))
    plant(monkeypatch, "temperature")
    assert all(each["mismatch/max_nats"] > 1e-2 for each in trained(tmp_path / "planted", "off"))
