"""The seeded corpus of slow and lossy nodes, and what is scored on it.

One `random.Random` seed a cluster: 64 nodes of one or two instance types for 2.5 hours, read every
10 s through cumulative counters. In it: jobs of 1 to 32 nodes that come and go, of four shapes
(synchronous; pipeline, whose stages differ; with a leader that is mostly idle; serving, where each
node has a load of its own); checkpoint pauses of 10 to 120 s that begin and end raggedly; nodes
that start up to two minutes late; chips and racks 2 to 6 % slower than others; warm nodes that
throttle a little at noon; power caps on whole jobs and congestion on parts of them; nuisances of
up to 90 s on one node; agents and drivers that restart, with gaps and counters from zero; drivers
without EFA's newer counters. Faults: throttled GPUs (5 to 90 % of the time), low clocks (55 to
91 %), retransmissions (2e-4 to 2e-2), replay storms (3 to 2 000 a second), silent peers that all or
some of the others name, a quarter of them flapping, and power brakes on nine nodes at once.

An alarm is right where it opens while its node is ill, or within a minute. A fault counts where for
four minutes a number told of it on a node that had peers; delay runs from then. The numbers of the
method were chosen on seeds from 1000 up; the benchmark's seeds are 101 to 124, the tests' 31 to 36.
"""
