"""Step debugger of a recorded run: `rlharness reproduce RUN --step K --interactive`.

    lines ─▶ words ─▶ console ─orders─▶ process ═pipes═ the run's own process (recording/stepping)
                         └─ step_progress: what was recorded so far, beside the recorded run

lines       what is typed, or read from a pipe or a file      words      a line as a command; pure
process     one run that stops; ended for certain             console    carries out commands
answers     the answer to each command                        opening    the step to pause at
step_progress    the position of the run, and its values; pure
"""
