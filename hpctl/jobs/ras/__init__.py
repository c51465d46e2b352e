"""What NCCL's own RAS service says of a job's communicators, and which rank the others wait for.

`client.query` asks it, `judge.culprits` compares two answers, `explain.Inquiry` puts a name to
a hang. Facts of the protocol are NCCL's: src/ras of its source, and its user guide's page on RAS.
"""
