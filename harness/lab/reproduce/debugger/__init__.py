"""Standing inside a step of a recorded run: `rlharness reproduce RUN --step K --interactive`.

    lines ─▶ words ─▶ console ─orders─▶ process ═pipes═ the run's own process (recording/stepping)
                         └─ walk: what was recorded so far, beside the recorded run

lines       what is typed, or read from a pipe or a file      words      a line as a command; pure
walk        where the run stands, and what it has; pure       console    carries out commands
process     one run that stops; ended for certain             command    from arguments to exit code
answers     what is said to each command
"""
