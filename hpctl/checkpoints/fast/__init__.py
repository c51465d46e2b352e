"""Saves on the nodes' own disks that survive the loss of a node: replicated, flushed, restored.

One helper runs on each node (`helpers`, `node`), as the owner of the job and in its allocation, and
serves the files that its node holds. The first helper that answers leads (`lead`): it judges each
step over the files of all nodes (`union`) by the proofs of the formats, and records which steps are
complete (`spec`). Partners copy the files of a step (`peer`); at a start `lead.restore` gathers the
newest complete step on every node.
"""
