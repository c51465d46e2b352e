"""NVML in a separate process, because a call into the driver can block forever or crash.

`child` is that process: it sweeps the GPUs through `driver`, the only module that calls pynvml,
and sends each sweep in the shape of `snapshot`. `client` is the agent's side: it takes the newest
sweep and reports a child that hangs. A child inside a call is abandoned and never killed, because
a process killed inside the driver can wedge the GPU.
"""
