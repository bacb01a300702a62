"""The bookkeeping of a run across nodes: no attempt is lost, and none counts twice, whatever nodes say and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from harness.runner.cluster.attempt_book import AttemptBook, Losses, Standing

pytestmark = pytest.mark.full

NODES = ("node0", "node1", "node2")


class Books(RuleBasedStateMachine):
    """The book against a plain model: for each attempt that has begun, the ways in which it was reported to end."""

    def __init__(self) -> None:
        super().__init__()
        self.book = AttemptBook()
        for node in NODES:
            self.book.join(node)
        self.living = set(NODES)
        self.nodes_of: dict[str, tuple[str, ...]] = {}
        self.ends: dict[str, list[str]] = {}
        self.num_begun = 0

    @rule(nodes=st.permutations(NODES).flatmap(lambda some: st.integers(1, 3).map(lambda n: tuple(some[:n]))))
    def begin(self, nodes: tuple[str, ...]) -> None:
        marker = f"a{self.num_begun}"
        self.num_begun += 1
        has_begun = self.book.begin(marker, nodes)
        assert has_begun == (set(nodes) <= self.living)
        if has_begun:
            self.nodes_of[marker], self.ends[marker] = nodes, []

    @rule(data=st.data(), node=st.sampled_from(NODES))
    def report_an_end(self, data: st.DataObject, node: str) -> None:
        """Any node says that any attempt has ended: the right one, another, too late, twice."""
        marker = data.draw(st.sampled_from(sorted(self.nodes_of) or ["unknown"]))
        standing = self.book.end(marker, node)
        if standing is not Standing.LATE:
            assert self.nodes_of[marker][0] == node
            assert node in self.living
            is_whole = set(self.nodes_of[marker]) <= self.living
            assert standing is (Standing.ENDED if is_whole else Standing.LOST)
            self.ends[marker].append(standing)

    @rule(node=st.sampled_from(NODES))
    def lose(self, node: str) -> None:
        is_known = node in self.living
        self.living.discard(node)
        losses = self.book.lose(node)
        assert is_known or losses == Losses()
        for marker in losses.lost:
            assert self.nodes_of[marker][0] == node
            self.ends[marker].append("lost")
        for marker in losses.broken:
            assert node in self.nodes_of[marker][1:]

    @invariant()
    def every_attempt_is_open_or_has_ended_once(self) -> None:
        for marker, ends in self.ends.items():
            assert len(ends) == (marker not in self.book.open), marker
            if marker in self.book.open:
                assert self.nodes_of[marker][0] in self.living, "nothing will end it"

    def teardown(self) -> None:
        """Once all nodes are lost, nothing is open."""
        for node in NODES:
            for marker in self.book.lose(node).lost:
                self.ends[marker].append("lost")
        assert self.book.open == frozenset()
        assert all(len(ends) == 1 for ends in self.ends.values())


TestBooks = Books.TestCase


@given(st.integers(0, 3))
def test_an_attempt_of_a_lost_node_does_not_come_back(num_repeats: int) -> None:
    book = AttemptBook()
    book.join("node0")
    assert book.begin("a", ("node0",))
    assert book.lose("node0") == Losses(("a",))
    assert [book.end("a", "node0") for _ in range(num_repeats)] == [Standing.LATE] * num_repeats


def test_a_marker_and_a_name_are_used_once() -> None:
    book = AttemptBook()
    book.join("node0")
    book.begin("a", ("node0",))
    with pytest.raises(AssertionError, match="begins twice"):
        book.begin("a", ("node0",))
    book.lose("node0")
    with pytest.raises(AssertionError, match="joins twice"):
        book.join("node0")
    with pytest.raises(AssertionError, match="begins twice"):
        book.begin("a", ("node0",))
