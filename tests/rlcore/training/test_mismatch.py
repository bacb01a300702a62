"""Mismatch of trainer and sampler: how far, the worst token in its context, and the cause, each planted once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.checks import causes
from rlcore.entrypoint import train
from rlcore.errors import LevelError, WeightSyncError
from rlcore.log import Clock, NullRecorder
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.batching import ContinuousBatch
from tests.rlcore.training.recorded import config, trained
from tests.rlcore.weights.targets import Target
from tests.support.samplers import TOKENIZER

CONFIG = DecoderConfig("qwen3", TOKENIZER.vocab_size, 32, 3, 4, 2, 8, 48, max_length=64)
TOKENS = tuple(3 + (5 * at) % 20 for at in range(24))
POSITIONS = range(9, 24)


# ------------------------------------------------------------------------------------------------------------- causes


class OtherLayer(Target):
    """A sampler whose second layer rounds differently from position 10 on."""

    def copied(self, decoder: Decoder) -> Decoder:
        """Return a copy with that layer."""
        made = super().copied(decoder)
        forward = made.layers[1].forward

        def rounded(x: Tensor, by: Any) -> Tensor:
            out: Tensor = forward(x, by).clone()
            out[:, 10:] *= 1 + 2**-12
            return out

        made.layers[1].forward = rounded
        return made


class OtherWeight(Target):
    """A sampler that was given another weight."""

    def copied(self, decoder: Decoder) -> Decoder:
        """Return a copy with the rows of a fused projection in another order."""
        made = super().copied(decoder)
        with torch.no_grad():
            gate_up = dict(made.named_parameters())["layers.2.gate_up"]
            gate_up.copy_(torch.cat(gate_up.chunk(2)[::-1]))
        return made


def causes_of(target: type[Target], *, off_by: float = 0.0) -> list[str]:
    with following(Strategy()), torch.no_grad():
        decoder = Decoder(CONFIG).initialise(3)
        sequence = torch.tensor(TOKENS)
        found = token_logprobs(decoder.logits(decoder.hidden(sequence[None, :-1]))[0], sequence[1:])
        found = found[[position - 1 for position in POSITIONS]] + off_by
        return [each.what for each in causes(decoder, target(decoder), TOKENS, POSITIONS, found, temperature=1.0)]


def test_a_weight_is_named() -> None:
    (cause,) = causes_of(OtherWeight)
    assert cause == "layers.2.gate_up of the sampler is not the policy's (1 of 26 parameters are not)"


def test_the_first_layer_that_differs_is_named_with_the_first_position() -> None:
    (cause,) = causes_of(OtherLayer)
    assert "weights are equal, and 13 of 23 tokens differ if the sampler reads the sequence again" in cause
    assert "the first activations that differ are those of layers.1, from position 10 on" in cause


def test_a_pass_of_the_trainer_that_depends_on_its_batch_is_named() -> None:
    (cause,) = causes_of(Target, off_by=1e-6)
    assert cause.startswith("the trainer's own pass depends on its batch: 15 of 15 tokens differ")


def test_if_all_agree_on_reading_it_is_decoding() -> None:
    (cause,) = causes_of(Target)
    assert "decoding differs from reading" in cause


# --------------------------------------------------------------------------------------------------------------- runs


def decode_off(monkeypatch: pytest.MonkeyPatch, row: int, at: int, by: float) -> None:
    """Let the sampler decode one log-probability wrongly."""
    run = ContinuousBatch.run

    def off(self: ContinuousBatch, *given: Any) -> Any:
        finished = run(self, *given)
        finished[row].logprobs[at] -= by
        return finished

    monkeypatch.setattr(ContinuousBatch, "run", off)


def test_a_sampler_that_decodes_wrongly_ends_the_step_with_the_token_in_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_off(monkeypatch, 2, 1, 0.125)
    with pytest.raises(LevelError) as caught:
        trained(config(training={"num_steps": 1}), tmp_path)
    said = caught.value.what
    assert said.startswith("step 0: rollout or forward: the trainer's log-probability is not the sampler's for 1 of ")
    assert "by at most 0.125 nats" in said and "decoding differs from reading" in said
    assert "sample 2 of prompt" in said and "«" in said


def test_a_search_that_fails_does_not_hide_the_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*given: Any, **others: Any) -> Any:
        raise WeightSyncError("the sampler does not answer", remedy="look at its log")

    decode_off(monkeypatch, 0, 0, 0.5)
    monkeypatch.setattr("rlcore.checks.causes", lost)
    with pytest.raises(LevelError) as caught:
        trained(config(training={"num_steps": 1}), tmp_path)
    assert "by at most 0.5 nats; the search for its cause failed: the sampler does not answer" in caught.value.what
    first = "reproduce the step first: rlharness reproduce RUN --step 0 --trace-ops"
    assert caught.value.remedy == f"{first}; then look at its log"


def test_at_level_off_a_report_says_why_and_metrics_say_how_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = config(
        training={"num_steps": 2}, runtime={"concurrency": 1}, output={"shows_mismatch": True, "shows_progress": True}
    )
    train(asked, level="off", directory=tmp_path, recorder=NullRecorder())
    said = capsys.readouterr().err
    assert "step 0: the trainer's log-probability is not the sampler's" in said
    assert "  cause:   " in said
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert all(0.0 < each["mismatch/max_nats"] < 1e-4 for each in lines if "mismatch/max_nats" in each)
    assert sum("mismatch/num_tokens" in each for each in lines) == 2


def test_at_level_invariant_metrics_are_zero_and_the_run_ends_with_its_phases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(config(training={"num_steps": 2}, output={"shows_mismatch": True, "shows_progress": True}), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [each["mismatch/num_tokens"] for each in lines if "mismatch/num_tokens" in each] == [0.0, 0.0]
    table = capsys.readouterr().err.partition("phase  ")[2].splitlines()
    assert table[0].split() == ["time", "share", "peak", "memory"]
    assert [line.split()[0] for line in table[1:]] == [
        "rollout",
        "reward",
        "update",
        "optimizer",
        "sync",
        "evaluation",
        "total",
    ]
    shares = [float(line.split()[3].rstrip("%")) for line in table[1:]]
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.5) and shares[-1] == 100.0
    assert all(float(line.split()[-2]) > 0.05 for line in table[1:])


def test_phases_of_a_gpu_end_when_it_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for before the clock is read, at both ends; memory is that of the model's GPU."""
    said: list[str] = []

    def saying(name: str, result: float) -> Callable[..., float]:
        def say(*device: torch.device) -> float:
            said.append(" ".join([name, *map(str, device)]))
            return result

        return say

    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, saying(name, 5e9))
    monkeypatch.setattr("rlcore.log.time.perf_counter", saying("clock", 1.0))
    phases = Clock("cuda:1")
    with phases("rollout"):
        said.append("rollout")
    before = ["synchronize cuda:1", "reset_peak_memory_stats cuda:1", "clock"]
    assert said == [*before, "rollout", "synchronize cuda:1", "clock", "max_memory_allocated cuda:1"]
    assert phases.take() == {"seconds/rollout": 0.0, "memory_gb/rollout": 5.0}
