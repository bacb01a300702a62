"""Notes on isolation that files have in common: one for all of them, of which none is lost."""

from hypothesis import given
from hypothesis import strategies as st

from harness.runner.units import OF_ALL_FILES, IsolationCode, IsolationNote, NotForked, merge_notes

NOTES = st.builds(
    IsolationNote,
    st.just(IsolationCode.TESTS_NOT_FORKED),
    st.sampled_from(("a.py", "b.py", "c.py")),
    st.sampled_from((NotForked.THREADS, *OF_ALL_FILES)),
    detail=st.sampled_from(("", "plugin", "other")),
)


@given(st.lists(NOTES))
def test_merged_notes_count_each_file_once(notes: list[IsolationNote]) -> None:
    merged = merge_notes(notes)
    assert len(set(merged)) == len(merged)
    for note in merged:
        of_it = {each.path for each in notes if (each.reason, each.detail) == (note.reason, note.detail)}
        if note.reason in OF_ALL_FILES:
            assert (note.path, note.num_processes) == ("", len(of_it))
        else:
            assert note.path in of_it and note.num_processes == 0
    kinds = {(note.reason, note.detail, "" if note.reason in OF_ALL_FILES else note.path) for note in notes}
    assert {(note.reason, note.detail, note.path) for note in merged} == kinds
