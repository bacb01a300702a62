"""Classifiers: ours are read back to the bit; others, and broken ones, are refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.checkpoints import CONFIG, WEIGHTS
from rlcore.models.classifier import CLASSIFIERS, Classifier, load_classifier, save_classifier
from rlcore.models.config import FAMILIES, DecoderConfig

TINY = DecoderConfig("llama", 40, 32, 2, 4, 2, 16, 48, max_length=64)


def saved(directory: Path, config: DecoderConfig = TINY) -> Classifier:
    classifier = Classifier(config).initialise(3)
    save_classifier(classifier, directory, pad_id=0)
    return classifier


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_read_back(tmp_path: Path, family: str, *, is_tied: bool) -> None:
    classifier = saved(tmp_path, replace(TINY, family=family, is_tied=is_tied))
    found = load_classifier(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_text("utf-8"))["architectures"][0] in CLASSIFIERS
    assert found.config == classifier.config
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in classifier.state_dict().items())
    tokens, lengths = torch.randint(0, 40, (3, 9)), [9, 4, 1]
    assert torch.equal(found(tokens, lengths), classifier(tokens, lengths).detach())
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_a_head_that_some_checkpoints_keep_is_ignored(tmp_path: Path) -> None:
    classifier = saved(tmp_path)
    head = {"lm_head.weight": torch.zeros(40, 32)}
    save_file(load_file(tmp_path / WEIGHTS) | head, tmp_path / WEIGHTS, metadata={"format": "pt"})
    assert torch.equal(load_classifier(tmp_path).score, classifier.score)


def test_a_score_is_that_of_the_last_token_whatever_follows(tmp_path: Path) -> None:
    classifier = saved(tmp_path)
    first, second = torch.randint(0, 40, (2, 1, 9))
    second[:, :4] = first[:, :4]
    with torch.no_grad():
        torch.testing.assert_close(classifier(first, [4]), classifier(second, [4]), rtol=0, atol=0)
        assert not torch.equal(classifier(first, [9]), classifier(second, [9]))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architecture LlamaForCausalLM"),
        ({"architectures": None}, "architecture not named"),
        ({"id2label": {"0": "bad", "1": "good"}}, "2 labels"),
        ({"id2label": None}, "2 labels"),
        ({"mlp_bias": True}, "mlp_bias True"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    saved(tmp_path)
    found = json.loads((tmp_path / CONFIG).read_text("utf-8")) | change
    (tmp_path / CONFIG).write_text(json.dumps(found), "utf-8")
    with pytest.raises(InvalidValueError, match=what) as caught:
        load_classifier(tmp_path)
    assert caught.value.legal


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"score.weight": None}, "without score.weight"),
        ({"model.norm.weight": None}, "without model.norm.weight"),
        ({"score.bias": torch.zeros(1)}, "with score.bias"),
        ({"score.weight": torch.zeros(2, 32)}, r"score.weight is \(2, 32\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], what: str) -> None:
    saved(tmp_path)
    tensors = {name: each for name, each in (load_file(tmp_path / WEIGHTS) | changed).items() if each is not None}
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=what):
        load_classifier(tmp_path)
