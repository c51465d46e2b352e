"""A cluster on one machine: a real Slurm on loopback and an emulated HyperPod. Nothing imports it.

The room promises that only the hardware and the cloud are imitations: slurmctld, slurmd, munged,
the agent and the daemon are the real programs, and a sandbox leaves no process behind.

- `command` is `hpctl sandbox`; `api` is the same for Python, as the tests and the demo use it.
- `keeper` starts `supervisor` and outlives it by a moment; `supervisor` runs the head services
  (`head`) and the instances (`instances`), each as a process tree below `init`.
- `emulator` answers the SageMaker cluster API over HTTP; `hyperpod` boots instances for it;
  `other_aws` serves S3, IAM, EC2 and more through moto.
- `faults` injects faults into nodes and plays HyperPod's health agent; `hardware` imitates devices
  as files.
- `demo` breaks a node under a `training` job and measures from outside.

The code runs in the processes that it starts, as an ordinary user; several head nodes and network
namespaces need root.

Begin with `api.py`, `supervisor.py` and `emulator/service.py`. The only ways in are the command
table and `hpctl cluster lifecycle test`, which import the room by name when it is called.
"""
