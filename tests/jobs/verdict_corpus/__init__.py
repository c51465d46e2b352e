"""Failures with known truth: real runs of torch (gloo, on CPUs), and what they leave behind.

`cases` says what a run is, and `first_half`, `second_half`, `third_part`, `fourth_part`,
`fifth_part`, `sixth_part` and `seventh_part` list 35, 35, 42, 36, 39, 40 and 40: 14 kinds of
failure, no two runs of a kind alike.
`python -m tests.jobs.verdict_corpus` makes them. `stage` is one run in separate namespaces, with
the nodes of `nodes` and what `outside` does to it; `programs` are what it trains.
`pack` removes the machine's paths and keeps a part as one archive in `recorded`.
`evidence` turns a run into what hpctl judges, and `score` compares the verdict with the truth.

The rules were written from the first half, and later also from what they missed in each later part.
Each part but the first was recorded before the rules were changed for it. Parts share no program
and no code that fails, and what the rules said at first sight of each is in `test_verdicts`.

Three things are not as in a job on GPUs. Device memory runs out by an error that the program
raises in torch's own wording. gloo writes no dumps of the flight recorder, so the programs write
them when NCCL would. The nodes are network and host name namespaces of one machine, so a node is
lost only by its network.
"""
