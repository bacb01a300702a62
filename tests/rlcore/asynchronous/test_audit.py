"""The audit finds each kind of wrong ledger, of batches made here by hand or by an orchestrator with a planted fault.

Two planted faults were found in other systems: groups cut by stride when samples are missing (AReaL 1419, slime 1414
and 2230), and a resume at a saved cursor of what was begun (OpenRLHF 1322, NeMo-RL 3599).
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms.advantages import dr_grpo
from rlcore.asynchronous import orchestrator as module
from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.directory import BATCH, BATCHES, Ledger, path_of, publish
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.errors import CheckpointError
from tests.rlcore.asynchronous.test_orchestrator import FREE, Server, go, interrupt, late, make, orchestrator

REWARDS = (0.0, 1.0, 0.25, 0.75)
"""Of the samples of a group, above those of group 0; their mean is 0.5, and that of the last two as well."""
Rows = list[dict[str, Any]]


def rows_of(group: int, version: int, first: int = 0) -> Rows:
    return [
        {"group": group, "version": version, "sample": sample, "reward": reward + group, "advantage": reward - 0.5}
        for sample, reward in enumerate(REWARDS)
        if sample >= first
    ]


def batch_of(*ledger: tuple[int, int, str], is_last: bool = False) -> dict[str, Any]:
    """A batch of groups of four; of a failed one two are left."""
    first = {"trained": 0, "failed": 2, "too old": 4}
    rows = [row for group, version, fate in ledger for row in rows_of(group, version, first[fate])]
    return {"ledger": ledger, "group_size": 4, "is_last": is_last, "is_by_mean": True, "in_order": False, "rows": rows}


def right() -> list[dict[str, Any]]:
    return [
        batch_of((0, 0, "trained"), (2, 0, "trained")),
        batch_of((3, 0, "trained"), (4, 1, "failed"), (1, 0, "too old")),
        batch_of((5, 2, "trained"), (6, 1, "trained"), is_last=True),
    ]


def write(run: Path, batches: Sequence[dict[str, Any]]) -> Path:
    for step, batch in enumerate(batches):
        publish(run / BATCHES, step, {BATCH: json.dumps(batch).encode()})
    return run


def test_a_right_ledger(tmp_path: Path) -> None:
    found = audit(write(tmp_path, right()))
    assert found.is_right and found.lines() == [
        "3 batches, 7 groups: 5 trained, 1 too old, 1 failed",
        "every group once",
    ]
    with pytest.raises(CheckpointError, match="nothing has no batches"):
        audit(tmp_path / "nothing")


def test_a_group_that_no_ledger_names_is_on_its_way_until_the_run_is_over(tmp_path: Path) -> None:
    batches = right()
    batches[1] = batch_of((3, 0, "trained"), (4, 1, "failed"))
    found = audit(write(tmp_path / "over", batches))
    assert not found.is_right and found.lost == [1] and found.on_their_way == []
    assert found.lines()[1:] == ["lost: groups [1], 1 in all", "the ledger is WRONG"]
    found = audit(write(tmp_path / "begun", batches[:2]))
    assert found.is_right and found.lost == [] and found.on_their_way == [1]
    assert found.lines()[1:] == ["1 groups on their way", "every group once"]


@pytest.mark.parametrize("group", [2, 6, 1], ids=["trained twice", "twice in one ledger", "discarded, then trained"])
def test_a_group_that_ledgers_name_twice(tmp_path: Path, group: int) -> None:
    last = batch_of((5, 2, "trained"), (6, 1, "trained"), (group, 1, "trained"), is_last=True)
    found = audit(write(tmp_path, [*right()[:2], last]))
    assert not found.is_right and found.doubled == [group] and found.lines()[1] == f"twice: groups [{group}], 1 in all"


SPOILT: Mapping[str, tuple[int, Callable[[Rows], object]]] = {
    "a row is missing": (0, lambda rows: rows.pop(1)),
    "a group that no ledger names": (0, lambda rows: rows.extend(rows_of(7, 0))),
    "a group that was discarded": (1, lambda rows: rows.extend(rows_of(1, 0))),
    "another version": (0, lambda rows: [row.update(version=1) for row in rows[:4]]),
    "another version of a failed group": (1, lambda rows: [row.update(version=0) for row in rows[4:]]),
    "two versions": (0, lambda rows: rows[2].update(version=1)),
    "a sample twice": (0, lambda rows: [row.update(sample=3, reward=0.0, advantage=0.0) for row in rows[:4]]),
    "a sample of a failed group twice": (1, lambda rows: rows[5].update(rows[4])),
    "compared with the whole batch": (0, lambda rows: [row.update(advantage=row["reward"] - 1.5) for row in rows]),
    "advantages that were scaled": (0, lambda rows: [row.update(advantage=2 * row["advantage"]) for row in rows]),
    "a reward that went missing": (0, lambda rows: rows[0].update(reward=None)),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_rows_that_are_not_those_of_the_ledger(tmp_path: Path, kind: str) -> None:
    batches, (step, spoil) = right(), SPOILT[kind]
    spoil(batches[step]["rows"])
    found = audit(write(tmp_path, batches))
    assert not found.is_right and len(found.wrong) == 1 and found.wrong[0].startswith(f"batches/step_{step}: ")
    assert found.lines()[-2:] == [found.wrong[0], "the ledger is WRONG"]


def test_a_lone_sample_of_a_group_keeps_its_reward(tmp_path: Path) -> None:
    batches = right()
    for row in batches[0]["rows"][:3]:
        row["reward"] = None
    batches[0]["rows"][3]["advantage"] = batches[0]["rows"][3]["reward"]
    assert audit(write(tmp_path, batches)).is_right


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
    if self._section.mode == "strict":  # behind all that was begun are groups whose weights follow from what is lost
        first = min(first, len(ledgers) * size + 1)
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
        await interrupt(tmp_path, late(1), num_batches=2, **settings)
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
    fatal = orchestrator(tmp_path, **settings).requests(0, 0)[0].key

    async def dies(asked: dict[str, Any], attempt: int) -> Any:
        return None if asked["seed"] == fatal else await late(0, 0.0)(asked, attempt)

    go(make(tmp_path, Server(dies), **settings))
    found = audit(tmp_path)
    assert found.fates == {"trained": 3, "failed": 1} and not found.lost and not found.doubled
    assert [line.split(":")[0] for line in found.wrong] == ["batches/step_0"] * is_planted
