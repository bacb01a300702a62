"""The page of a run of tests, one HTML file in the directory of the run.

page.py         the whole page                      reporter.py  writes it when the run has finished
sections.py     verdict, figures, changes, failures timeline_data.py  what the script draws
markup.py       elements whose text is escaped      assets/      style, and what moves in it
"""
