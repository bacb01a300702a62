"""The page that `rlharness report` writes: the comparison of two or more runs, as one HTML file.

views.py         the facts of a report in plain values              page.py       plain values in, HTML out (Jinja2)
curves.py        the values of all runs over each other             templates/    HTML, style, and a script that copies
completions.py   what was generated, flipped tokens marked          vocabulary.py numbers of tokens to text
next_commands.py
"""
