"""Saves on the nodes' own disks that survive the loss of a node: replicated, flushed, restored.

One helper a node (`helpers`, `node`), of the job's owner and in the job's allocation, answers for
what its node holds. The first that lives leads (`lead`): it judges each step over the files of all
nodes (`union`), by the formats' own proofs, and writes down what is whole. Partners copy what a
step consists of; at a start `lead.restore` gathers the newest whole step on every node.
"""
