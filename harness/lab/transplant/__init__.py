"""One run replayed with something of another, to show which difference caused what follows.

plan        what is put where, before any run; pure      bench      A again, B again, A with B's values
grafts      what is taken, and in which steps; pure      findings   the two runs, and what was found
judgement   what came of it; pure                        command    from arguments to exit code
"""
