"""Log rules: what a job's own log says of hangs, numbers gone wrong and failed uploads.

Lines and times go in, verdicts come out; nothing here acts on a job.
"""
