"""With all layers, arrival and batching move no bit of a run with replicas and a reward model; without one, they do."""

from pathlib import Path

import pytest

from tests.rlcore.training.recorded import Digests
from tests.support.five_layers import LAYERS, Layer, compare, remove

CHECKED = {"environment propagation", "per-request seed", "batch invariance", "scheduling and routing"}
"""Layers whose removal a check of the step finds by itself; the others show only against another run."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    found, differences = compare("torch", tmp_path_factory.mktemp("runs"), num_steps=2)
    assert differences == {"the same run again": None, "all layers, jittered": None}
    return found


FEW = [*LAYERS[:2], *(pytest.param(layer, marks=pytest.mark.full) for layer in LAYERS[2:])]


@pytest.mark.parametrize("layer", FEW, ids=lambda layer: layer.name)
def test_without_a_layer_runs_differ(layer: Layer, reference: Digests, tmp_path: Path) -> None:
    removal = remove(layer, reference, "torch", tmp_path, num_steps=2)
    assert removal.difference is not None
    assert bool(removal.error) == (layer.name in CHECKED), removal.error
