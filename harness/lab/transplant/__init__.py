"""Replays one run with values of another, to show which difference caused the later ones.

plan         what is patched where, before any run; pure     executor   A again, B again, A with B's values
patches      which values, and in which steps; pure          findings   the two runs, and the findings
comparison   the effect of a patch; pure
"""
