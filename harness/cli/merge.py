"""`rlharness merge`: merge recorded runs into one summary."""

import click

from harness.bits.errors import UsageError
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import is_outermost_on_github, show


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=opt.PATH)
@opt.option("--junit FILE", "Write a JUnit XML report to this file.", opt.PATH)
@opt.output
def merge(invocation: Invocation, output: opt.Output, /, *, runs: tuple[str, ...], junit: str | None) -> int:
    """Merge recorded runs, such as all shards of a suite, into one summary.

    RUN is the directory of a run, or its events.jsonl. The exit code is that of one run over all their files.
    """
    import io
    from pathlib import Path

    from harness.render.junit import junit_text
    from harness.render.run_json import merge_json
    from harness.render.run_reporters import LateReporter
    from harness.render.run_text import SummaryReporter, merge_lines
    from harness.runner.records.recorded_run import merge_runs, read_recorded_run

    merged = merge_runs([read_recorded_run(Path(run)) for run in runs])
    if output.is_json:
        opt.show_json(merge_json(merged))
    else:
        stream = io.StringIO("".join(f"{line}\n" for line in merge_lines(merged)))
        stream.seek(0, io.SEEK_END)
        SummaryReporter(stream, colour=output.colour).on_event(merged.finished, merged.state)
        show(stream.getvalue().rstrip("\n"))
    if is_outermost_on_github(invocation.environ):
        from harness.render.run_github import summarize_merge

        summarize_merge(merged.state, merged.finished, invocation.environ)
    if junit is not None:  # last: the outcomes are shown where this file cannot be written
        try:
            LateReporter(Path(junit), "JUnit XML", junit_text).on_event(merged.finished, merged.state)
        except (OSError, UsageError) as error:
            refusal = opt.unwritable("JUnit XML", Path(junit), error) if isinstance(error, OSError) else error
            refusal.in_record = True
            raise refusal from None
    return merged.exit_code
