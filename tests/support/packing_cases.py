"""Inventories, needs and jobs to pack, and the optimum of tiny instances by trying everything."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from hypothesis import settings
from hypothesis import strategies as st

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job

QUICK = settings(max_examples=min(100, 2 * settings().max_examples), derandomize=True)
THOROUGH = settings(max_examples=4 * settings().max_examples, derandomize=True)


def inventory(*kinds: tuple[int, str, float]) -> Inventory:
    """GPUs by kind: (how many, model, memory in GB)."""
    flat = [(model, memory_gb) for number, model, memory_gb in kinds for _ in range(number)]
    return Inventory(gpus=tuple(Gpu(f"ID-{i}", i, model, gb, (9, 0)) for i, (model, gb) in enumerate(flat)))


EIGHT = inventory((8, "H200", 143.0))
INVENTORIES = st.sampled_from(
    [
        EIGHT,
        inventory((4, "H200", 143.0)),
        inventory((3, "H200", 143.0)),
        inventory((4, "A100", 80.0), (4, "H200", 143.0)),
        inventory((2, "A100", 40.0), (2, "A100", 80.0), (3, "H200", 143.0)),
        inventory(),
    ]
)
NEEDS = st.builds(
    Need,
    gpus=st.sampled_from([0, 0, 1, 1, 2, 3, 4, 8]),
    memory_gb=st.sampled_from([0.0, 0.0, 60.0, 100.0]),
    model=st.sampled_from([None, None, None, "A100", "h200"]),
    exclusive=st.sampled_from([False, False, False, False, True]),
)
SHARED_NEEDS = NEEDS.filter(lambda need: not need.exclusive)
SECONDS = st.one_of(st.integers(1, 20).map(float), st.floats(0.01, 1000.0))


@st.composite
def jobs_of(
    draw: st.DrawFn, needs: st.SearchStrategy[Need], max_size: int = 25, seconds: st.SearchStrategy[float] = SECONDS
) -> list[Job]:
    """Jobs whose indexes are not their positions."""
    drawn = draw(st.lists(st.tuples(needs, seconds), max_size=max_size))
    indexes = draw(st.permutations(range(len(drawn))))
    return [Job(index, need, expected_s) for index, (need, expected_s) in zip(indexes, drawn, strict=True)]


def widths(max_width: int) -> st.SearchStrategy[Need]:
    """Needs of 1 to `max_width` of any GPUs."""
    return st.integers(1, max_width).map(lambda gpus: Need(gpus=gpus))


Demand = tuple[int, ...]
"""How much a unit takes of each kind of GPU, then of the CPU slots."""


def optimum_s(jobs: Sequence[Job], table: LeaseTable) -> float:
    """The least makespan of any schedule, found by trying all; for a handful of jobs that can all run.

    Every order, every choice of GPUs, each unit as early as the ones before it allow: one of these is optimal, since
    any schedule can be shifted to the left until it is one of them.
    """
    kinds = sorted({(gpu.model, gpu.memory_gb) for gpu in table.gpus})
    capacity = (*(sum((g.model, g.memory_gb) == kind for g in table.gpus) for kind in kinds), table.cpu_units)
    best_s = float("inf")
    for order in permutations(jobs):
        options = [list(_demands(job.need, kinds, capacity, table.mix_models)) for job in order]
        for demands in product(*options):
            best_s = min(best_s, _left_shifted_s(list(zip(order, demands, strict=True)), capacity))
    return best_s


def _demands(need: Need, kinds: Sequence[tuple[str, float]], capacity: Demand, mix_models: bool) -> Iterator[Demand]:
    if need.gpus == 0:
        yield (*(0 for _ in kinds), 1)
        return
    for counts in product(*(range(min(number, need.gpus) + 1) for number in capacity[:-1])):
        used = [kind for kind, number in zip(kinds, counts, strict=True) if number]
        fits = all(gb >= need.memory_gb and (need.model or "").lower() in model.lower() for model, gb in used)
        if sum(counts) == need.gpus and fits and (mix_models or len({model for model, _ in used}) == 1):
            yield (*counts, 0)


def _left_shifted_s(order: Sequence[tuple[Job, Demand]], capacity: Demand) -> float:
    placed: list[tuple[float, float, Demand, bool]] = []
    for job, demand in order:
        for start_s in sorted({0.0, *(end_s for _, end_s, _, _ in placed)}):
            entry = (start_s, start_s + job.expected_s, demand, job.need.exclusive)
            if _is_feasible([*placed, entry], capacity):
                placed.append(entry)
                break
    return max((end_s for _, end_s, _, _ in placed), default=0.0)


def _is_feasible(placed: Sequence[tuple[float, float, Demand, bool]], capacity: Demand) -> bool:
    for moment_s in {start_s for start_s, _, _, _ in placed}:
        running = [entry for entry in placed if entry[0] <= moment_s < entry[1]]
        if len(running) > 1 and any(exclusive for _, _, _, exclusive in running):
            return False
        taken = [sum(column) for column in zip(*(demand for _, _, demand, _ in running), strict=True)]
        if any(number > limit for number, limit in zip(taken, capacity, strict=bool(running))):
            return False
    return True
