"""What ranks save, any number of ranks and one process resume to the same bits; what is not whole is not loaded."""

from pathlib import Path
from shutil import copytree, rmtree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.checkpoint import load, load_newest
from rlcore.errors import CheckpointError
from tests.rlcore.trainers.conftest import NUM_RANKS, OnRanks
from tests.support.rank_checkpoints import (
    failing_save,
    local_resume,
    local_save,
    resumed,
    saved,
    two_updates,
)
from tests.support.rank_training import Case

PAIRS = [
    (Case(4, 4), Case(4, 2)),
    pytest.param(Case(4, 2), Case(1, 1), marks=pytest.mark.full),
    *(
        pytest.param(one, other, marks=pytest.mark.full)
        for one in (Case(4, 4), Case(2, 1), Case(2, 2))
        for other in (Case(4, 4), Case(2, 2), Case(4, 1))
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_run_is_resumed_by_any_number_of_ranks_and_any_kind_to_the_same_bits(
    on_ranks: OnRanks, tmp_path: Path, one: Case, other: Case
) -> None:
    expected = on_ranks(two_updates)[0]
    on_ranks(saved, one, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == one.num_ranks
    assert on_ranks(local_resume, str(tmp_path)) == [expected] * NUM_RANKS
    assert on_ranks(resumed, other, str(tmp_path)) == [expected] * other.num_ranks + [None] * (
        NUM_RANKS - other.num_ranks
    )


@pytest.mark.full
def test_what_one_process_saves_ranks_resume(on_ranks: OnRanks, tmp_path: Path) -> None:
    expected = on_ranks(two_updates)[0]
    path = local_save(str(tmp_path))
    assert on_ranks(resumed, Case(4, 4), path) == [expected] * NUM_RANKS


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 3])
def test_every_rank_hears_of_one_that_cannot_write(on_ranks: OnRanks, tmp_path: Path, rank: int) -> None:
    found = on_ranks(failing_save, Case(4, 4), str(tmp_path), rank)
    assert found == [found[0]] * NUM_RANKS
    assert f"rank {rank}: OSError(28, 'No space left on device')" in found[0]


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the format of ranks."""
    return Path(local_save(str(tmp_path_factory.mktemp("whole")))).parent


@given(data=st.data())
def test_a_checkpoint_that_is_cut_anywhere_is_never_taken_for_whole(
    whole_checkpoint: Path, tmp_path: Path, data: st.DataObject
) -> None:
    rmtree(tmp_path / "cut", ignore_errors=True)
    cut = tmp_path / "cut" / whole_checkpoint.name
    copytree(whole_checkpoint, cut)
    load(cut)
    files = sorted(path for path in cut.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    size = data.draw(st.integers(-1, file.stat().st_size - 1))
    if size < 0:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError):
        load(cut)
    with pytest.raises(CheckpointError):
        load_newest(tmp_path / "cut")
