"""The commands: what each takes, and which room carries it out. Each imports its room when it runs.

options     what several commands take
usage       what the parser refuses, told as everything else is
testing     run, plan, doctor
recording   scenarios, train, trace, replay, diff, report
finding     chaos, gate, bisect, transplant
"""
