"""Scenarios against the goldens of this machine and environment; or what becomes a golden, where that is asked for."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.text import path_text
from harness.lab.experiments.worktrees import Checkout
from harness.lab.gate.change import Change, Finding
from harness.lab.gate.golden import (
    Acceptance,
    Golden,
    acceptance_finding,
    accepted,
    compare_with_golden,
    golden_directory,
    golden_of,
    read_goldens,
    write_golden,
)
from harness.lab.gate.plan import GateContext, GateOptions
from harness.lab.gate.reasons import GoldensKept, Named, NoGolden, Reason, ReasonCode
from harness.lab.gate.result import GateScenario
from harness.lab.gate.sides import HEAD, Recorder, disagreement
from harness.process.clock import Clock
from harness.trace.mapped_libraries import deciding

LEAST_AGREEING = 2
"""Runs of the head that have to agree before one is compared with a golden, or becomes one."""


class AgainstGolden:
    """The goldens of one gate, all of which are read before the first run."""

    def __init__(self, options: GateOptions, directory: Path, checkout: Checkout, clock: Clock) -> None:
        self._options = options
        self._directory = directory
        self._commit = checkout.commit("HEAD").short + ("+" if checkout.is_dirty else "")  # goldens make it dirty
        self._user = checkout.user
        self._clock = clock
        self._read: dict[str, dict[str, Golden]] = {}
        self.notes: list[Reason] = []

    def read(self, scenes: Iterable[GateContext]) -> None:
        """Read the goldens of these; GoldenError for one that cannot be read, UsageError for no such directory."""
        if not self._options.accepts and not self._directory.is_dir():
            raise UsageError(
                f"there are no goldens in {path_text(self._directory)}: it is not a directory",
                legal="a directory that rlharness gate --accept has written to",
                remedy="rlharness gate --golden DIR --accept --reason TEXT writes the first ones",
            )
        self._read = {scene.name: read_goldens(self._place(scene)) for scene in scenes}

    async def compare(self, recorder: Recorder, scene: GateContext) -> GateScenario:
        """A scenario and its golden; NOT_COMPARABLE where there is none for it here. Interrupted, BrokenRun."""
        place, goldens = self._place(scene), dict(self._read[scene.name])
        if not goldens and not self._options.accepts:
            reason = NoGolden(ReasonCode.NO_GOLDEN, place)
            return GateScenario(scene.name, Finding(Change.NOT_COMPARABLE, (reason,)))
        while len(recorder.runs[HEAD]) < LEAST_AGREEING:
            await recorder.record(HEAD, scene)
        if unlike := disagreement(recorder):
            return GateScenario(scene.name, unlike)
        now = golden_of(recorder.traces(HEAD)[0], scene.name, scene.size)
        key = fitting_key(goldens, now)
        before = goldens.pop(key, None)
        against = f"golden {key}"
        if not self._options.accepts:
            if before is None:
                return GateScenario(
                    scene.name, Finding(Change.NOT_COMPARABLE, (why_not_comparable(goldens.values(), now),))
                )
            return GateScenario(scene.name, compare_with_golden(before, now), against=against, golden=before)
        golden = accepted(now, before, self._acceptance())
        if golden is not before:
            write_golden(place / key, golden)
        if goldens:
            self.notes.append(GoldensKept(ReasonCode.GOLDENS_KEPT, scene.name, tuple(goldens)))
        return GateScenario(scene.name, acceptance_finding(before, now), against=against, golden=golden)

    def _place(self, scene: GateContext) -> Path:
        return golden_directory(self._directory, scene.name, scene.size)

    def _acceptance(self) -> Acceptance:
        return Acceptance(f"{self._clock.wall():%Y-%m-%d}", self._commit, self._options.reason, self._user)


def fitting_key(goldens: Mapping[str, Golden], now: Golden) -> str:
    """Return the key of the golden whose deciding numerics are those of this run; the run's own if there is none."""
    fits = (key for key, each in goldens.items() if deciding(each.numerics) == deciding(now.numerics))
    return now.key if now.key in goldens else next(fits, now.key)


def why_not_comparable(goldens: Iterable[Golden], now: Golden) -> Reason:
    """Return the numerics in which the nearest of these goldens differs from this run."""
    mine, others = deciding(now.numerics), [deciding(each.numerics) for each in goldens]
    differing = [sorted(n for n in mine.keys() | its.keys() if mine.get(n) != its.get(n)) for its in others]
    nearest = min(differing, key=len)
    return Named(ReasonCode.NO_GOLDEN_FOR_ENVIRONMENT, tuple(nearest))
