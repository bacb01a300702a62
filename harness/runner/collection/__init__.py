"""Which units a run has: test files as pytest collects them, groups and parts of files.

collect.py          starts the processes that collect     source_scan.py    whether a need takes an import
collect_options.py  what a collection is asked            default_needs.py  needs of files that have none
discovery.py        in pytest: finds the files            split_files.py    files that dominate, in parts
deselected.py       files with a selection of tests       together.py       files that run in one process
child_files.py      what a collecting process wrote       idle_patterns.py  patterns and modules that do not exist
"""
