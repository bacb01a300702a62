"""The audit finds each kind of wrong ledger, of batches made here by hand or by an orchestrator with a planted fault.

Two planted faults were found in other systems: groups cut by stride when samples are missing (AReaL 1419, slime 1414
and 2230), and a resume at a saved cursor of what was begun (OpenRLHF 1322, NeMo-RL 3599).
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms.advantages import dr_grpo
from rlcore.asynchronous import orchestrator as module
from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.directory import BATCHES, path_of, publish, read, steps
from rlcore.asynchronous.orchestrator import BATCH, Ledger, Orchestrator
from rlcore.errors import CheckpointError
from tests.rlcore.asynchronous.test_orchestrator import FREE, Server, go, late, make, orchestrator

REWARDS = (0.0, 1.0, 0.25, 0.75)
Batch = dict[str, Any]


def row_of(group: int, version: int, sample: int) -> dict[str, Any]:
    reward = REWARDS[sample] + group
    return {"group": group, "version": version, "sample": sample, "reward": reward, "advantage": REWARDS[sample] - 0.5}


def batch_of(step: int, ledger: Sequence[tuple[int, int, str]], *, is_last: bool = False) -> Batch:
    """A batch of groups of four, each row of a failed group but the first."""
    rows = [
        row_of(group, version, sample)
        for group, version, fate in ledger
        for sample in range(4)
        if fate == "trained" or (fate == "failed" and sample not in (0, 1))
    ]
    for row in rows:
        if row["sample"] == 2 and (row["group"], row["version"], "failed") in ledger:
            row["advantage"] = -0.25
        elif row["sample"] == 3 and (row["group"], row["version"], "failed") in ledger:
            row["advantage"] = 0.25
    return {"step": step, "ledger": ledger, "group_size": 4, "is_last": is_last, "rows": rows}


def right() -> list[Batch]:
    return [
        batch_of(0, [(0, 0, "trained"), (2, 0, "trained")]),
        batch_of(1, [(3, 0, "trained"), (4, 1, "failed"), (1, 0, "too old")]),
        batch_of(2, [(5, 2, "trained"), (6, 1, "trained")], is_last=True),
    ]


def write(run: Path, batches: Sequence[Batch]) -> Path:
    for step, batch in enumerate(batches):
        publish(run / BATCHES, step, {BATCH: json.dumps(batch).encode()})
    return run


def test_a_right_ledger(tmp_path: Path) -> None:
    found = audit(write(tmp_path, right()))
    assert found.is_right and found.lines() == [
        "3 batches, 7 groups: 5 trained, 1 too old, 1 failed",
        "every group once",
    ]
    assert audit(tmp_path / "nothing").is_right


def test_a_group_that_no_ledger_names_is_on_its_way_until_the_run_is_over(tmp_path: Path) -> None:
    batches = right()
    del batches[1]["ledger"][-1]
    found = audit(write(tmp_path / "over", batches))
    assert not found.is_right and found.lost == [1] and found.on_their_way == []
    assert found.lines()[1:] == ["lost: groups [1], 1 in all", "the ledger is WRONG"]
    found = audit(write(tmp_path / "begun", batches[:2]))
    assert found.is_right and found.lost == [] and found.on_their_way == [1]
    assert found.lines()[1:] == ["1 groups on their way", "every group once"]


def test_a_group_that_is_trained_twice(tmp_path: Path) -> None:
    batches = right()
    batches[2] = batch_of(2, [(2, 2, "trained"), (5, 2, "trained"), (6, 1, "trained")], is_last=True)
    found = audit(write(tmp_path, batches))
    assert not found.is_right and found.doubled == [2] and not found.wrong
    assert found.lines()[1] == "twice: groups [2], 1 in all"
    batches[2] = batch_of(2, [(5, 2, "trained"), (1, 2, "trained"), (6, 1, "trained")], is_last=True)
    assert audit(write(tmp_path / "discarded, then trained", batches)).doubled == [1]


def test_a_group_that_one_ledger_names_twice(tmp_path: Path) -> None:
    batches = right()
    batches[0] = {**batches[0], "ledger": [*batches[0]["ledger"], (0, 0, "trained")]}
    assert audit(write(tmp_path, batches)).doubled == [0]


def _without(batch: Batch) -> None:
    del batch["rows"][1]


def _of_a_group_that_is_not_there(batch: Batch) -> None:
    batch["rows"] += [row_of(7, 0, sample) for sample in range(4)]


def _of_another_version(batch: Batch) -> None:
    for row in batch["rows"][:4]:
        row["version"] += 1


def _of_two_versions(batch: Batch) -> None:
    batch["rows"][2]["version"] += 1


def _one_sample_twice(batch: Batch) -> None:
    batch["rows"][1] = batch["rows"][0]


def _of_what_was_discarded(batch: Batch) -> None:
    batch["ledger"][0] = (batch["ledger"][0][0], batch["ledger"][0][1], "too old")


def _with_advantages_of_the_whole_batch(batch: Batch) -> None:
    rewards = torch.tensor([row["reward"] for row in batch["rows"]])
    for row, advantage in zip(batch["rows"], (rewards - rewards.mean()).tolist(), strict=True):
        row["advantage"] = advantage


def _with_no_reward_and_an_advantage(batch: Batch) -> None:
    batch["rows"][0]["reward"] = None


@pytest.mark.parametrize(
    "spoil",
    [
        _without,
        _of_a_group_that_is_not_there,
        _of_another_version,
        _of_two_versions,
        _one_sample_twice,
        _of_what_was_discarded,
        _with_advantages_of_the_whole_batch,
        _with_no_reward_and_an_advantage,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_rows_that_are_not_those_of_the_ledger(tmp_path: Path, spoil: Callable[[Batch], None]) -> None:
    batches = right()
    spoil(batches[0])
    found = audit(write(tmp_path, batches))
    assert not found.is_right and len(found.wrong) == 1 and found.wrong[0].startswith("batches/step_0: ")
    assert found.lines()[-2:] == [found.wrong[0], "the ledger is WRONG"]


def test_a_batch_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    write(tmp_path, right())
    middle = path_of(tmp_path / BATCHES, 1)
    middle.rename(away := tmp_path / "away")
    with pytest.raises(CheckpointError, match="batches/step_1 is missing"):
        audit(tmp_path)
    away.rename(middle)
    assert audit(tmp_path).is_right
    content = (middle / BATCH).read_bytes()
    (middle / BATCH).write_bytes(content.replace(b'"trained"', b'"TRAINED"', 1))
    with pytest.raises(CheckpointError, match=r"step_1/batch.json is damaged"):
        audit(tmp_path)


# ------------------------------------------------------------------------------------------------------ planted faults


def _from_a_cursor(
    self: Orchestrator, ledgers: Sequence[Ledger], _: Sequence[Ledger]
) -> Iterator[tuple[int, int | None]]:
    """A plan that goes on after what was begun, as a file of the run says."""
    path = self._run / "cursor"
    first = int(path.read_text()) if path.exists() else 0
    ahead, size = self._section.max_async_level, self._per_step
    for group in itertools.count(first):
        path.write_text(str(group + 1))
        yield group, None if self._section.mode == "free" else max(0, group // size - ahead)


@pytest.mark.parametrize("settings", [{}, FREE], ids=["strict", "free"])
@pytest.mark.parametrize("is_planted", [True, False], ids=["at a cursor", "where the ledgers end"])
def test_a_resume_that_loses_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_planted: bool
) -> None:
    if is_planted:
        monkeypatch.setattr(Orchestrator, "_plan", _from_a_cursor)

    async def interrupted() -> None:
        work = asyncio.create_task(make(tmp_path, Server(late(1)), **settings))
        while len(steps(tmp_path / BATCHES)) < 2:
            await asyncio.sleep(0.001)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await make(tmp_path, Server(late(2)), **settings)

    go(interrupted())
    found = audit(tmp_path)
    assert found.num_batches == settings.get("num_steps", 4) and not found.wrong and not found.doubled
    assert bool(found.lost) is is_planted is not found.is_right


@pytest.mark.parametrize("is_planted", [True, False], ids=["by stride", "by number"])
def test_groups_that_are_cut_by_stride_where_samples_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    def strided(rewards: torch.Tensor, groups: torch.Tensor, included: torch.Tensor) -> torch.Tensor:
        return dr_grpo(rewards, torch.arange(len(groups)) // 3, included)

    if is_planted:
        monkeypatch.setattr(module, "dr_grpo", strided)
    settings: dict[str, Any] = {"rollouts_per_example": 3, "sampling": {"max_tokens": 40}, "num_steps": 2}
    fatal = orchestrator(tmp_path, ["http://none/v1"], **settings).requests(0)[0].key

    async def dies(asked: dict[str, Any], attempt: int) -> Any:
        return None if asked["seed"] == fatal else await late(0, 0.0)(asked, attempt)

    go(make(tmp_path, Server(dies), **settings))
    found = audit(tmp_path)
    assert found.fates == {"trained": 3, "failed": 1} and not found.lost and not found.doubled
    assert [line.split(":")[0] for line in found.wrong] == ["batches/step_0"] * is_planted
    assert len(read(tmp_path / BATCHES, 1, BATCH)) > 0
