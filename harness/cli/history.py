"""`rlharness history`: durations and outcomes of files and tests in the last runs."""

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say, show


@click.command()
@click.argument("name", required=False, type=opt.PATH, metavar="[TEST-OR-FILE]")
@opt.json_flag
@click.pass_obj
def history(invocation: Invocation, /, *, name: str | None, is_json: bool) -> int:
    """Show durations and outcomes of files and tests in the last runs.

    Without TEST-OR-FILE, all files are listed, longest first.
    """
    import os

    from harness.bits.text import count, one_line
    from harness.render.history import history_json, history_lines
    from harness.runner.config import load_config_for
    from harness.runner.records.history import History, history_path, select_trends, similar_names

    path, colons, test = (name or "").partition("::")
    config = load_config_for([invocation.cwd / path] if path else [], invocation.cwd)
    root = config.path.parent if config.path else invocation.cwd
    file = history_path(root, invocation.environ)
    with History.of_root(root, invocation.environ, is_run=False) as past:
        known, notes = past.trends(), past.notes
    if config.history_free:
        notes = (*notes, f"{config.path} sets history-free, so runs record nothing")
    is_empty = f"No run of the suite in {one_line(str(root), 4096)} is recorded"
    if name is None:
        found = sorted((each for each in known if not each.is_test), key=lambda each: -(each.median_s or 0.0))
    else:  # a path from the working directory, or from the root of the suite
        names = [os.path.normpath(path) + colons + test, os.path.relpath(invocation.cwd / path, root) + colons + test]
        found = select_trends(known, names)
        if not found:
            similar = ", ".join(map(one_line, similar_names(known, names[-1])))
            raise UsageError(
                f"no recorded run has {one_line(name)}" if known else is_empty,
                legal=f"a test, file or directory that has run{similar and f', such as {similar}'}",
                remedy="rlharness history lists the known files" if known else "run the suite with rlharness run",
            )
    if is_json:
        opt.show_json(history_json(found, exit_code=ExitCode.OK, file=str(file), notes=notes))
        return ExitCode.OK
    for note in notes:
        say(note)
    if not found:
        show(f"{is_empty}. rlharness run records runs in {file}")
        return ExitCode.OK
    show("\n".join(history_lines(found)))
    if name is None:
        num_tests = count(len(known) - len(found), "test")
        say(f"{count(len(found), 'file')} and {num_tests} known; rlharness history FILE lists the tests of a file")
    return ExitCode.OK
