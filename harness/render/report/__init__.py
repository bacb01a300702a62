"""The page that `rlharness report` writes: the comparison of two or more runs, as one HTML file.

subjects.py      the runs, their letters, the verdict of each against the first
views.py         the facts of a report in plain values              page.py       plain values in, HTML out (Jinja2)
curves.py        the values of all runs over each other             templates/    HTML, style, and what moves in it
grid.py          which value differs at which step                  uplot/        the library that plots, unchanged
completions.py   what was generated, flipped tokens marked          vocabulary.py numbers of tokens to text
fingerprints.py  side by side, what differs first                   next_commands.py
"""
