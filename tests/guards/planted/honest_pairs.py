"""False alarms: the engine without any fault, undisturbed and perturbed, in pairs that have to be alike."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.lab.experiment.flat_config import overridden
from tests.guards.planted.perturbations import Perturbation, drawn
from tests.guards.planted.settings import CHECKPOINT_EVERY, CRASH_AFTER, payload
from tests.guards.planted.trials import differing
from tests.guards.planted.workers import Run, Workers

SETTINGS = ("grpo", "updates", "ppo", "filtered", "ragged")
PAIRS_A_RUN = 10
"""So many perturbed runs are compared with each undisturbed one; each ten have a setting and a seed of their own."""
FIRST_SEED = 100


def alarms(num_pairs: int, workers: Workers) -> Iterator[str]:
    """What is found in the pairs 0 to num_pairs - 1, always the same ones: one text for each in which anything is."""
    for first in range(0, num_pairs, PAIRS_A_RUN):
        number = first // PAIRS_A_RUN
        base = payload(SETTINGS[number % len(SETTINGS)]) | {"seed": FIRST_SEED + number}
        (undisturbed,) = workers.honest([base])
        numbers = range(first, min(first + PAIRS_A_RUN, num_pairs))

        def alarm(pair: int, worker: int, base: dict[str, Any] = base, undisturbed: Run = undisturbed) -> str:
            runs = perturbed_runs(base, drawn(pair), workers, worker)
            told = differing(undisturbed, runs, workers.new_directory())
            return f"honest pair {pair} ({drawn(pair)}): {told}" if told else ""

        yield from filter(None, workers.side_by_side(alarm, numbers))


def perturbed_runs(base: dict[str, Any], perturbation: Perturbation, workers: Workers, worker: int) -> list[Run]:
    """One run, or one that is lost and one that goes on from it."""
    perturbed = overridden(base, perturbation.values, perturbation.name)
    if not perturbation.crashes:
        return [workers.run(perturbed, worker=worker)]
    lossy = overridden(perturbed, {"output.checkpoint_every": CHECKPOINT_EVERY}, perturbation.name)
    lost = workers.run(lossy, lost_after=CRASH_AFTER, worker=worker)
    later = overridden(perturbed, {"output.resume": str(lost.directory)}, perturbation.name)
    return [lost, workers.run(later, worker=worker)]


def left_behind(goldens: Mapping[str, Run], workers: Workers) -> Iterator[str]:
    """What differs in honest runs of processes that have had faults in them: one text for each such run."""
    for setting, golden in goldens.items():
        again = [workers.start(payload(setting), worker=worker) for worker in range(workers.num_workers)]
        for worker, run in enumerate(again):
            if text := differing(golden, [run.result()], workers.new_directory()):
                yield f"{setting}, worker {worker}: {text}"
