"""The page that `rlharness report` writes: the comparison of two or more runs, as one HTML file.

page.py          the facts of a report as its template takes them      curves.py         all runs over each other
completions.py   what was generated, flipped tokens marked             next_commands.py  commands to type next
templates/       HTML, style, and a script that copies
"""
