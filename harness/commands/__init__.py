"""The commands: what each takes, and which room carries it out. Each imports its room when it runs.

options     what several commands take
testing     run, plan, doctor
recording   scenarios, train, trace, replay, diff, report
finding     chaos, gate, bisect, transplant
"""
