"""What a batch makes of the weights: teachers, noise, ratios of samples, batches of which nothing is learned."""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as tensors_of

from rlcore.algorithms.schedules import noise_sigma
from rlcore.asynchronous.broadcast import NORMS, WEIGHTS
from rlcore.asynchronous.directory import BROADCASTS, METRICS, read
from rlcore.asynchronous.infer import logprobs_of
from rlcore.asynchronous.settings import read_train, training_config
from rlcore.asynchronous.trainer import AsynchronousTrainer
from rlcore.log import NullRecorder
from rlcore.models.build import build_model
from rlcore.models.decoder import Decoder
from rlcore.trainers.remote import builder
from tests.support.asynchronous_run import CONFIG, make_model, write_files

SAMPLED = [[5, 9, 12, 7], [8, 8, 20], [4, 25, 6, 11, 3]]
NUM_PROMPT = 2


def trainer(directory: Path, said: list[str], **train: Any) -> AsynchronousTrainer:
    make_model(directory / "model")
    files = write_files(directory / "run", directory / "model", train={"level": "off", **train})
    section, _ = read_train(files["train"])
    config = training_config(section)
    tokenizer, decoder = build_model(config)
    record, build = builder(config, decoder, NullRecorder(), None)
    run = directory / "run" / "run_default"
    return AsynchronousTrainer(section, run, build("policy"), tokenizer, record=record, say=said.append)


def batch(*, far: float = 0.0, teacher: Decoder | None = None, temperature: float = 1.0, **changes: Any) -> Any:
    """Three samples of a group, drawn by the initial policy; with `far`, from weights that gave less to each token."""
    policy = Decoder(CONFIG).initialise(1)
    rows = []
    for number, tokens in enumerate(SAMPLED):
        drawn = logprobs_of(policy, tokens, temperature)[NUM_PROMPT - 1 :]
        row = {
            "group": 0,
            "sample": number,
            "version": 0,
            "prompt": "p",
            "num_prompt": NUM_PROMPT,
            "tokens": tokens,
            "logprobs": [each - far for each in drawn],
            "mask": [True] * len(drawn),
            "temperature": temperature,
            "reward": float(number),
            "advantage": number - 1.0,
        }
        if teacher is not None:
            row["teacher"] = logprobs_of(teacher, tokens, temperature)[NUM_PROMPT - 1 :]
        rows.append(row | changes)
    return {"rows": rows}


def weights_of(made: AsynchronousTrainer) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in made.policy.weights().tensors.items()}


def moved(directory: Path, batch: Any, **train: Any) -> tuple[dict[str, torch.Tensor], dict[str, float], list[str]]:
    said: list[str] = []
    made = trainer(directory, said, **train)
    metrics = made.step(0, batch)
    return weights_of(made), metrics, said


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def drawn_batch(policy: Decoder, teacher: Decoder, seed: int, number: int = 64) -> Any:
    """Samples of one token after one prompt, drawn by the present policy."""
    prompt, (mine, theirs) = [5, 9], (distribution(model) for model in (policy, teacher))
    tokens = torch.multinomial(mine.exp(), number, replacement=True, generator=torch.Generator().manual_seed(seed))
    row = {"group": 0, "version": 0, "prompt": "p", "num_prompt": 2, "mask": [True], "temperature": 1.0}
    rows = [
        {
            **row,
            "sample": at,
            "tokens": [*prompt, token],
            "logprobs": [float(mine[token])],
            "teacher": [float(theirs[token])],
            "reward": 0.0,
            "advantage": 0.0,
        }
        for at, token in enumerate(tokens.tolist())
    ]
    return {"rows": rows}


@torch.no_grad()
def distribution(model: Decoder) -> torch.Tensor:
    """Log-probabilities of the token after the prompt."""
    return model.logits(model.hidden(torch.tensor([[5, 9]])))[0, -1].log_softmax(-1)


@pytest.mark.parametrize("teacher_tau", [0.0, 1.0])
def test_pure_distillation_moves_the_policy_to_the_teacher(tmp_path: Path, teacher_tau: float) -> None:
    """By the exact divergence, over the whole vocabulary; without a weight of the teacher it stays."""
    teacher, loss = Decoder(CONFIG).initialise(2), {"adv_tau": 0.0, "teacher_tau": teacher_tau}
    with torch.no_grad():
        teacher.embedding.mul_(8.0)
    made = trainer(tmp_path, [], loss=loss, lr_scheduler_type="constant", weight_decay=0.0)
    policy = made.policy.weights().decoder()

    def divergence() -> float:
        mine, theirs = distribution(policy), distribution(teacher)
        return float((mine.exp() * (mine - theirs)).sum())

    before, seen = divergence(), []
    for number in range(60):
        seen.append(made.step(number, drawn_batch(policy, teacher, number))["teacher_kl"])
    assert before > 0.1 and seen[0] == pytest.approx(before, rel=0.5), "its estimate by what is drawn"
    assert divergence() < 0.3 * before if teacher_tau else divergence() == pytest.approx(before, rel=0.05)


def test_a_teacher_that_is_the_policy_is_named_and_teaches_nothing(tmp_path: Path) -> None:
    teacher, loss = Decoder(CONFIG).initialise(1), {"teacher_tau": 0.5}
    blended, metrics, said = moved(tmp_path / "taught", batch(teacher=teacher), loss=loss)
    alone, _, _ = moved(tmp_path / "alone", batch())
    assert equal(blended, alone) and metrics["teacher_kl"] == 0.0
    assert said == ["step 0: the teacher has the policy's own probabilities, and teaches nothing"]


def test_a_sample_that_became_likely_has_a_larger_ratio_as_a_whole(tmp_path: Path) -> None:
    """Three samples of 2, 1 and 3 tokens, each e^0.1 times as likely as when it was drawn."""
    found = {}
    for kind in ("token", "sequence"):
        for far in (0.0, 0.1):
            _, metrics, _ = moved(tmp_path / f"{kind}{far}", batch(far=far), loss={"ratio_type": kind})
            found[kind, far] = metrics["loss"]
    rows, tokens = batch()["rows"], 6
    share = [-row["advantage"] * math.fsum(row["logprobs"]) / tokens for row in rows]
    lengths = [len(row["logprobs"]) for row in rows]
    assert found["token", 0.1] == pytest.approx(math.fsum(share) * math.exp(0.1), rel=1e-4)
    expected = math.fsum(each / n * math.exp(0.1 * n) for each, n in zip(share, lengths, strict=True))
    assert found["sequence", 0.1] == pytest.approx(expected, rel=1e-4) != pytest.approx(found["token", 0.1], rel=1e-2)
    capped = moved(tmp_path / "capped", batch(far=0.1), loss={"ratio_type": "sequence", "sequence_clip_high": 1.0})
    assert capped[1]["loss"] == pytest.approx(found["sequence", 0.0], rel=1e-4)


def test_log_probabilities_are_at_the_temperature_of_each_sample(tmp_path: Path) -> None:
    hot = batch(temperature=0.5)
    _, metrics, _ = moved(tmp_path / "right", hot)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    for row in hot["rows"]:
        row["temperature"] = 1.0
    _, metrics, _ = moved(tmp_path / "wrong", hot)
    assert abs(metrics["kl"]) > 1e-3, "by another temperature the ratios are not 1 before the first update"
    mixed = {"rows": [*batch(temperature=0.5)["rows"][:1], *batch()["rows"][1:]]}
    assert moved(tmp_path / "mixed", mixed)[1]["kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("changes", [{"mask": [False] * 2}, {"reward": None}])
def test_a_batch_of_which_nothing_is_learned_leaves_the_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    given = batch(**changes)
    before = dict(Decoder(CONFIG).initialise(1).named_parameters())
    weights, metrics, said = moved(tmp_path, given)
    assert equal(weights, before) and metrics["tokens"] == 0
    assert said == ["step 0: no token is trained, and the weights stay"]
    assert moved(tmp_path / "empty", {"rows": []})[1] == metrics


def test_a_sample_of_which_a_filter_leaves_nothing_is_not_learned_and_the_others_are(tmp_path: Path) -> None:
    filtered, without = batch(), batch()
    filtered["rows"][1]["mask"] = [False]
    del without["rows"][1]
    weights, metrics, _ = moved(tmp_path / "filtered", filtered)
    assert equal(weights, moved(tmp_path / "without", without)[0])
    assert not equal(weights, moved(tmp_path / "all", batch())[0])
    assert metrics["tokens"] == 5 and metrics["reward_mean"] == 1.0, "its reward counts"


def test_tokens_outside_the_mask_are_not_learned(tmp_path: Path) -> None:
    given, other = batch(), batch()
    for rows in (given["rows"], other["rows"]):
        rows[2]["mask"] = [True, False, True]
    other["rows"][2]["logprobs"][1] = -9.0
    assert equal(moved(tmp_path / "one", given)[0], moved(tmp_path / "other", other)[0])
    assert not equal(moved(tmp_path / "all", batch())[0], moved(tmp_path / "again", given)[0])


def test_samplers_have_noise_on_their_norms_and_the_trainer_has_none(tmp_path: Path) -> None:
    noise = {"enabled": True, "sigma_start": 0.1, "sigma_end": 0.01, "num_stages": 4}
    sigma = partial(noise_sigma, start=0.1, end=0.01, num_stages=4, num_steps=8)

    def broadcasts(name: str, seed: int = 1, **train: Any) -> list[dict[str, torch.Tensor]]:
        said: list[str] = []
        made = trainer(tmp_path / name, said, seed=seed, **train)
        for step in range(8):
            made._broadcast(step, {})
        run = tmp_path / name / "run" / "run_default" / BROADCASTS
        files = [WEIGHTS, *[NORMS] * bool(train)]
        found = [{k: v for name in files for k, v in tensors_of(read(run, step, name)).items()} for step in range(8)]
        digests = {json.loads(read(run, step, METRICS))["weights_digest"] for step in range(8)}
        assert len(digests) == (7 if train else 1), "the first stage has no noise, and no two versions have the same"
        assert equal(weights_of(made), dict(Decoder(CONFIG).initialise(1).named_parameters()))
        return found

    clean, noisy, again, other = (
        broadcasts("clean"),
        broadcasts("noisy", noise_scheduler=noise),
        broadcasts("again", noise_scheduler=noise),
        broadcasts("other", seed=2, noise_scheduler=noise),
    )
    for step in range(8):
        assert equal(noisy[step], again[step]), "noise follows from seed and step"
        norms = [name for name in noisy[step] if name.endswith("norm")]
        assert len(norms) == 5 and all(
            torch.equal(noisy[step][n], clean[step][n]) for n in noisy[step] if n not in norms
        )
        added = torch.cat([noisy[step][name] - clean[step][name] for name in norms])
        if step < 2:
            assert not added.any()
        else:
            assert float(added.std()) == pytest.approx(sigma(step), rel=0.35)
            assert not equal(noisy[step], other[step])


def test_a_line_says_if_completions_of_the_present_weights_have_other_log_probabilities(tmp_path: Path) -> None:
    assert not moved(tmp_path / "right", batch())[2]
    (line,) = moved(tmp_path / "far", batch(far=0.1))[2]
    text = "step 0: the log-probability by weights 0 is not the sampler's for 6 of 6 tokens, by 0.1 nats on average"
    assert line.startswith(text)
    mixed = batch(far=0.1)
    for row in mixed["rows"][:2]:  # of other weights, and without their files nothing is said
        row["version"] = -1
    (line,) = moved(tmp_path / "mixed", mixed)[2]
    assert "for 3 of 3 tokens" in line and "sample 2 of group 0" in line
    assert not moved(tmp_path / "earlier", batch(far=0.1, version=-1))[2]


def test_completions_of_earlier_weights_are_read_again_by_their_files(tmp_path: Path) -> None:
    said: list[str] = []
    made = trainer(tmp_path, said)
    for version in (1, 2):
        made._broadcast(version, {})
    before = weights_of(made)
    made.step(2, batch(version=1))
    assert not said, "they are the weights that drew them"
    assert not equal(weights_of(made), before)
    made._next_reading = 1
    made.step(3, batch(version=1))
    assert not said, "and the files stay as they were, when the policy has moved"
    made.step(4, batch(version=2, far=0.1))
    assert not said, "not every version is read again"
    made._next_reading = 1
    made.step(5, batch(version=2, far=0.1))
    assert [line.split(",")[0] for line in said] == [
        "step 5: the log-probability by weights 2 is not the sampler's for 6 of 6 tokens"
    ]
