"""One run replayed with something of another, to show which difference caused what follows.

grafts      what is taken, and in which steps; pure      bench      A again, B again, A with B's values
judgement   what came of it; pure                        command    from arguments to exit code
findings    the two runs, and what was found
"""
