"""Failures with known truth: real runs of torch (gloo, on CPUs), and what they leave behind.

`cases` says what a run is, and `first_half` and `second_half` list 35 each: 14 kinds of failure,
five runs of a kind, no two alike. `python -m tests.jobs.verdict_corpus` makes them. `stage` is one
run in separate namespaces, with the nodes of `nodes` and what `outside` does to it; `programs` are
what it trains. `pack` removes the machine's paths and keeps a half as one archive in `recorded`.
`evidence` turns a run into what hpctl judges, and `score` compares the verdict with the truth.

The rules of `hpctl.jobs.verdict` may be written from the first half. The second half has other
programs, parts and places; it is there to measure them and is not read while rules are written.

Three things are not as in a job on GPUs. Device memory runs out by an error that the program
raises in torch's own wording. gloo writes no dumps of the flight recorder, so the programs write
them when NCCL would. The nodes are network and host name namespaces of one machine, so a node is
lost only by its network.
"""
