"""The search for the first bad commit: histories of any shape, commits that cannot be run, few probes."""

from collections.abc import Mapping
from math import ceil, log2

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.bisect.bisection import Outcome, Search, ancestors, in_a_line

History = Mapping[int, tuple[int, ...]]


@st.composite
def histories(draw: st.DrawFn, max_size: int = 30) -> History:
    """Commits 0 to n; each has one or more earlier parents, or the good commit -1; the last one has all others."""
    size = draw(st.integers(1, max_size))
    parents: dict[int, tuple[int, ...]] = {}
    for commit in range(size):
        earlier = st.integers(-1, commit - 1)
        parents[commit] = tuple(draw(st.lists(earlier, min_size=1, max_size=3, unique=True)))
    parents[size] = tuple(range(size)) or (-1,)
    return parents


def searched(parents: History, bad: int, first_bad: int, broken: frozenset[int]) -> tuple[Search[int], int]:
    """A whole search, and how many probes it took; whoever has `first_bad` among its ancestors is bad."""
    search, num_probes = Search.of(parents, bad), 0
    probed: set[int] = set()
    everything = frozenset(parents)
    while (probe := search.next_probe) is not None:
        num_probes += 1
        assert probe not in probed, "nobody is asked twice"
        probed.add(probe)
        if probe in broken:
            outcome = Outcome.SKIP
        else:
            outcome = Outcome.BAD if first_bad in ancestors(parents, probe, everything) else Outcome.GOOD
        search = search.after(probe, outcome)
    return search, num_probes


@settings(derandomize=True)
@given(histories(), st.data())
def test_the_first_bad_commit_is_found(parents: History, data: st.DataObject) -> None:
    bad = max(parents)
    first_bad = data.draw(st.sampled_from(sorted(parents)))
    search, num_probes = searched(parents, bad, first_bad, frozenset())
    assert search.candidates == (first_bad,) == (search.bad,)
    assert num_probes < len(parents)


@settings(derandomize=True)
@given(histories(), st.data())
def test_what_cannot_be_run_is_never_blamed_alone_and_never_lost(parents: History, data: st.DataObject) -> None:
    bad = max(parents)
    first_bad = data.draw(st.sampled_from(sorted(parents)))
    broken: frozenset[int] = frozenset(data.draw(st.sets(st.sampled_from(sorted(parents))))) - {bad}
    search, _ = searched(parents, bad, first_bad, broken)
    assert first_bad in search.candidates
    assert search.bad not in broken
    assert set(search.candidates) - broken == {search.bad}, "what could have been asked was"
    everything: frozenset[int] = frozenset(parents)
    of_first: frozenset[int] = ancestors(parents, first_bad, everything)
    if not broken & of_first:
        assert search.candidates == (first_bad,)


@settings(derandomize=True)
@given(st.integers(1, 300), st.data())
def test_a_line_is_halved_with_every_probe(size: int, data: st.DataObject) -> None:
    names = list(range(size + 1))
    first_bad = data.draw(st.integers(1, size))
    search, num_probes = searched(in_a_line(names), size, first_bad, frozenset())
    assert search.candidates == (first_bad,)
    assert num_probes <= ceil(log2(size)) if size > 1 else num_probes == 0
    assert Search.of(in_a_line(names), size).num_left == (ceil(log2(size)) if size > 1 else 0)
