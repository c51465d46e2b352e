"""The timed checks of a node: GPUs, EFA, InfiniBand, Neuron, the host, the processes of jobs.

One file holds one check, with `gather` and `judge` as `hpctl.detection.check` describes them; the
module that has only a family's name (`efa`, `gpu_memory`, `host_disks`, ...) lists the checks of
that family, and `*_reading` holds what its checks read in common. Interval, grace and limits of a
check are its row in `hpctl.faults.table`, not code.
"""
