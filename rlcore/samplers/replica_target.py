"""The weight target of replicas: every question goes to all of them, and their answers have to be equal."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TypeVar

from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.receipts import Check
from rlcore.weights.target import Difference, Region, TargetState, WeightTarget

Answer = TypeVar("Answer")


class ReplicaTarget:
    """Several targets as one, as `rlcore.weights.target.WeightTarget`.

    Raises WeightSyncError, naming the replica, for an answer that differs from the other replicas'.
    """

    def __init__(self, targets: Sequence[WeightTarget]) -> None:
        self._targets = tuple(targets)
        self._lock = threading.Lock()
        self._is_sampling = False

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Keep syncs away from all replicas while any of them draws. Raises WeightSyncError if one draws already."""
        with self._lock:
            if self._is_sampling:
                raise _busy("completions are being drawn")
            self._is_sampling = True
        try:
            yield
        finally:
            self._is_sampling = False

    def describe(self) -> TargetState:
        """As `WeightTarget.describe`; replicas have memory of their own, and the first one's is returned."""
        states = [each.describe() for each in self._targets]
        self._agree([state.policy_version for state in states], Check.FENCE, "the version")
        self._agree([state.weights_digest for state in states], Check.HELD, "the weights")
        self._agree([sorted(state.parameters) for state in states], Check.COVERAGE, "the parameters")
        for name in states[0].parameters:
            specs = [state.parameters[name] for state in states]
            kinds = [(str(spec), spec.is_meta) for spec in specs]
            self._agree(kinds, Check.COVERAGE, "the type and shape", name)
            regions = [(number, spec.region) for number, spec in enumerate(specs) if spec.region is not None]
            for (first, region), (second, other) in combinations(regions, 2):
                if _is_shared(region, other):
                    raise WeightSyncError(
                        f"of replica {second} is in the memory of replica {first}",
                        check=Check.OWNERSHIP,
                        parameter=name,
                        remedy="give each replica a copy of its own",
                    )
        return states[0]

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: no replica begins while any of them draws."""
        with self._lock:
            if self._is_sampling:
                raise _busy("weights are being loaded")
            for each in self._targets:
                each.begin(policy_version)

    def poison(self, names: Sequence[str]) -> None:
        """As `WeightTarget.poison`."""
        for each in self._targets:
            each.poison(names)

    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        """As `WeightTarget.write`."""
        return self._all(lambda target: list(target.write(chunk)), Check.COVERAGE, "the names written")

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """As `WeightTarget.digests`."""
        found = [each.digests(names) for each in self._targets]
        for name in names:
            self._agree([each.get(name) for each in found], Check.READ_BACK, "the digest", name)
        return found[0]

    def compare(self, chunk: Mapping[str, Tensor]) -> Mapping[str, Difference]:
        """As `WeightTarget.compare`."""
        return self._all(lambda target: dict(target.compare(chunk)), Check.READ_BACK, "the difference")

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`; log-probabilities of replicas are equal to the bit."""
        found = [each.canary(tokens) for each in self._targets]
        self._agree([tuple(map(float.hex, each.tolist())) for each in found], Check.CANARY, "the canary")
        return found[0]

    def commit(self, weights_digest: str) -> None:
        """As `WeightTarget.commit`."""
        for each in self._targets:
            each.commit(weights_digest)

    def _all(self, ask: Callable[[WeightTarget], Answer], check: Check, what: str) -> Answer:
        found = [ask(each) for each in self._targets]
        self._agree(found, check, what)
        return found[0]

    def _agree(self, answers: Sequence[object], check: Check, what: str, parameter: str = "") -> None:
        """Raise WeightSyncError with the first replica whose answer is not the most frequent one."""
        texts = [repr(each) for each in answers]
        expected, count = Counter(texts).most_common(1)[0]
        if count == len(texts):
            return
        number = next(at for at, text in enumerate(texts) if text != expected)
        raise WeightSyncError(
            f"of replica {number} of {len(texts)}: {what} is {texts[number]:.80}, and {expected:.80} of replica "
            f"{texts.index(expected)}",
            check=check,
            parameter=parameter,
            remedy="find who else writes that replica's weights, or loses them; then sync with previous=None",
        )


def _is_shared(first: Region, second: Region) -> bool:
    is_one_memory = (first.process, first.device) == (second.process, second.device)
    return is_one_memory and first.begin < second.end and second.begin < first.end


def _busy(what: str) -> WeightSyncError:
    return WeightSyncError(
        f"{what} while the replicas run", check=Check.FENCE, remedy="wait until sample() has returned"
    )
