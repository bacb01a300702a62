"""The whole benchmark: every fault, then honest pairs, then the proof that nothing of a fault has stayed behind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.mutations.fault import Fault
from tests.benchmarks.mutations.honest_pairs import alarms
from tests.benchmarks.mutations.settings import payload
from tests.benchmarks.mutations.trials import MOST_STEPS_AFTER, NOTHING, Finding, Trial, differing
from tests.benchmarks.mutations.workers import Progress, Run, Workers

LEAST_LOCALISED = 0.9


@dataclass(frozen=True, slots=True)
class Results:
    """What the benchmark has found."""

    findings: tuple[Finding, ...]
    num_pairs: int
    """Honest pairs that were compared."""
    alarms: tuple[str, ...]
    """Honest pairs in which something was found, with what."""

    @property
    def shortcomings(self) -> list[str]:
        """Why the benchmark fails; nothing where it does not."""
        found = [f"{each.fault.name}: NOT REACHED" for each in self.findings if not each.num_reached]
        found += [
            f"{each.fault.name}: not found by anything"
            for each in self.findings
            if each.check == NOTHING and not each.fault.is_harmless
        ]
        found += [
            f"{each.fault.name}: found, and no bit depends on it"
            for each in self.findings
            if each.check != NOTHING and each.fault.is_harmless
        ]
        found += [f"{each.fault.name}: {each.how}, by no check" for each in self.findings if not each.is_designed]
        found += [
            f"{each.fault.name}: found {each.steps_after} steps after its first effect"
            for each in self.findings
            if each.steps_after is not None and each.steps_after > MOST_STEPS_AFTER
        ]
        num_localised = sum(each.is_localised for each in self.findings)
        if num_localised < LEAST_LOCALISED * len(self.findings):
            found.append(f"{num_localised} of {len(self.findings)} are localised, fewer than {LEAST_LOCALISED:.0%}")
        return found + [f"false alarm: {alarm}" for alarm in self.alarms]


def carry_out(faults: Sequence[Fault], num_pairs: int, workers: Workers, progress: Progress) -> Results:
    """Try every fault and compare honest pairs."""
    goldens = {
        setting: workers.honest(payload(setting)) for setting in dict.fromkeys(fault.setting for fault in faults)
    }
    findings = []
    for number, fault in enumerate(faults, 1):
        finding = Trial(workers, fault, goldens[fault.setting]).finding()
        findings.append(finding)
        progress(f"{number} of {len(faults)}: {fault.name}: {finding.check} {finding.how}".rstrip())
    found = [*_left_behind(goldens, workers), *alarms(num_pairs, workers, progress)]
    return Results(tuple(findings), num_pairs, tuple(found))


def _left_behind(goldens: dict[str, Run], workers: Workers) -> Iterable[str]:
    """In processes that have had every fault in them, honest runs have the bits that they had before."""
    for setting, golden in goldens.items():
        again = [workers.start(payload(setting), worker=worker) for worker in range(workers.num_workers)]
        for worker, run in enumerate(again):
            if told := differing(golden, [run.result()], workers.new_directory()):
                yield f"{setting}, worker {worker} after all faults: {told}"
