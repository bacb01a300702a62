"""The command of the first contact: demo."""

from typing import Any

import click

from harness.cli import recording, testing
from harness.cli.options import SomePath, color_option
from harness.process.invocation import Invocation


@click.command()
@click.option(
    "--out",
    type=SomePath(),
    default="rlharness-demo",
    metavar="DIR",
    help="Write the example project to DIR: new, empty, or that of an earlier demo.  [default: rlharness-demo]",
)
@click.option("--json", "json", is_flag=True, help="Print the result as JSON on standard output.")
@color_option
@click.pass_obj
def demo(invocation: Invocation, /, **arguments: Any) -> int:
    """Show `run` and `replay` at work on an example project.

    Its suite has a hang and a crash, and the runs of its program differ. Needs no GPU. The part with `replay` needs
    torch, and is left out without it. Exits with 0 if everything that ran found what is planted, else 3.
    """
    from harness.cli.commands.demo import DemoOptions, run_demo

    options = DemoOptions(out=arguments["out"], color=arguments["color"], is_json=arguments["json"])
    return int(run_demo(invocation, options, _parsed))


def _parsed(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of `run` or `replay` for these words, as the command line would."""
    command: click.Command = {"run": testing.run, "replay": recording.replay}[name]
    with command.make_context(name, list(words)) as context:
        return dict(context.params)
