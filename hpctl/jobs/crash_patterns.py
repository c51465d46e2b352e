"""What programs print when they die: one row a wording, each with a line that was really seen.

`sample` is a line as its program prints it, shortened; `source` says where it is from: a file of
the program, an issue that shows it, or "seen" for what was produced on purpose. A test runs every
sample through `hpctl.jobs.crash.classify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from hpctl.core.trouble import Kind


class PatternTier(IntEnum):
    """How much a line explains. The lowest tier wins, and within it the first line."""

    ORDER = 0
    """Slurm says that it ended the run, and why."""
    CAUSE = 1
    """A rank says what broke in it."""
    ECHO = 2
    """A rank says that it lost others: the first of these when nobody says what broke."""
    WRAPPER = 3
    """A launcher says that one of its processes ended, and of what signal or exit code."""


@dataclass(frozen=True, slots=True)
class CrashPattern:
    """One wording. `pattern` is RE2's (hpctl.jobs.logs.patterns); the table's order breaks ties.

    `says` is the reason for a person and, unless `named`, the signature with it; `named` takes
    the line's own normalised text instead. `names_node`: whether the place where the line comes
    from is the place that is broken.
    """

    kind: Kind
    pattern: str
    says: str
    sample: str
    source: str
    tier: PatternTier = PatternTier.CAUSE
    named: bool = False
    names_node: bool = True


_SLURM: Final = (
    CrashPattern(
        Kind.TIME_LIMIT,
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        "its time limit is over",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO TIME LIMIT ***",
        "slurmstepd 22.05",
        PatternTier.ORDER,
        names_node=False,
    ),
    CrashPattern(
        Kind.PREEMPTED,
        r"CANCELLED AT \S+ DUE TO PREEMPTION",
        "Slurm preempted it",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO PREEMPTION"
        " ***",
        "slurmstepd 22.05",
        PatternTier.ORDER,
        names_node=False,
    ),
    CrashPattern(
        Kind.PREEMPTED,
        r"CANCELLED AT \S+ DUE TO JOB REQUEUE",
        "somebody requeued it",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO JOB REQUEUE"
        " ***",
        "slurmstepd 22.05",
        PatternTier.ORDER,
        names_node=False,
    ),
    CrashPattern(
        Kind.NODE,
        r"Node failure on \S+",
        "Slurm lost a node of it",
        "srun: error: Node failure on jean-zay-iam37",
        "srun 22.05",
        PatternTier.ORDER,
    ),
    CrashPattern(
        Kind.NODE,
        r"CANCELLED AT \S+ DUE TO NODE FAILURE",
        "Slurm lost a node of it",
        "slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51"
        " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        "slurmstepd 22.05",
        PatternTier.ORDER,
        # The node that says so is the one that still lives.
        names_node=False,
    ),
    CrashPattern(
        Kind.FINAL,
        r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*",
        "somebody cancelled it",
        "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-09-21T10:00:00 ***",
        "slurmstepd 22.05",
        PatternTier.ORDER,
        names_node=False,
    ),
)

_MEMORY: Final = (
    CrashPattern(
        Kind.HOST_MEMORY,
        r"(?i)detected \d+ oom[-_]kill event",
        "the kernel killed a rank for its memory",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=14604003.0. Some of your"
        " processes may have been killed by the cgroup out-of-memory handler.",
        "slurmstepd 22.05; `oom_kill event` since 23.02",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"task[s]? [\d,-]+: Out Of Memory",
        "the kernel killed a rank for its memory",
        "srun: error: o0616: task 0: Out Of Memory",
        "osc.edu, knowledge base",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"exceeded (?:virtual )?memory limit .*being killed|Exceeded (?:step|job) memory limit",
        "Slurm killed a rank for its memory",
        "slurmstepd: error: StepId=12.0 exceeded memory limit (9000 > 8000), being killed",
        "slurmstepd 22.05",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"Out of memory: Killed process|oom-kill:constraint=",
        "the kernel killed a process for its memory",
        "[12345.6] Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB",
        "Linux mm/oom_kill.c",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"insufficient shared memory \(shm\)"
        r"|unable to (?:write to file|open shared memory object) <?/torch_",
        "its shared memory is full",
        "RuntimeError: DataLoader worker (pid 3290) is killed by signal: Bus error. It is possible"
        " that dataloader's workers are out of shared memory. Please try to raise your shared"
        " memory limit. ERROR: Unexpected bus error encountered in worker. This might be caused by"
        " insufficient shared memory (shm).",
        "torch/utils/data/_utils/signal_handling.py",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"DataLoader worker \(pid\S* \d+\) is killed by signal: Killed",
        "a data loader worker was killed, most likely for its memory",
        "RuntimeError: DataLoader worker (pid 1822) is killed by signal: Killed. ",
        "torch/utils/data/_utils/signal_handling.py",
    ),
    CrashPattern(
        Kind.HOST_MEMORY,
        r"DefaultCPUAllocator: can't allocate memory|std::bad_alloc"
        r"|^(?:\[?\S+\]?:\s*)?MemoryError\b|numpy\S*_ArrayMemoryError|(?i:\[Errno 12\])",
        "the host has no memory left for it",
        "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator:"
        " can't allocate memory: you tried to allocate 4000000000000000 bytes. Error code 12",
        "seen with torch 2.13",
    ),
    CrashPattern(
        Kind.GPU_MEMORY,
        r"(?:CUDA|HIP|XPU) out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory"
        r"|Cuda failure (?:\d+ )?'out of memory'",
        "GPU out of memory",
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 2"
        " has a total capacity of 79.15 GiB of which 3.94 GiB is free.",
        "c10/cuda/CUDACachingAllocator.cpp",
    ),
    CrashPattern(
        Kind.GPU_MEMORY,
        r"CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: .*[Oo]ut of memory",
        "GPU out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "aten/src/ATen/cuda/Exceptions.h; XLA",
    ),
    CrashPattern(
        Kind.GPU_MEMORY,
        r"NRT_RESOURCE\b|nrt_\w+ status=4\b",
        "Neuron device out of memory",
        "2024-Jul-30 14:22:31.305961 65191:69012 ERROR   NRT:nrt_infodump"
        "                            Failure: NRT_RESOURCE in nrt_load()",
        "huggingface/optimum-neuron#668; nrt_status.h",
    ),
)

_DEVICE: Final = (
    CrashPattern(
        Kind.CRASH,
        r"device-side assert triggered|CUDA_ERROR_ASSERT",
        "device-side assert",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        # The program's own assertion, most often an index out of bounds: no fault of the device.
        "mrdbourke/pytorch-deep-learning#1290",
    ),
    CrashPattern(
        Kind.CUDA,
        r"(?i:uncorrectable ECC error encountered)|CUDA_ERROR_ECC_UNCORRECTABLE",
        "uncorrectable ECC error",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "huggingface/accelerate#1192",
    ),
    CrashPattern(
        Kind.CUDA,
        r"uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable NVLink error",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "MIC-DKFZ/nnUNet#1519",
    ),
    CrashPattern(
        Kind.CUDA,
        r"NVRM: Xid \(",
        "the driver reported an Xid",
        "[ 9021.3] NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "NVIDIA XID errors",
    ),
    CrashPattern(
        Kind.CUDA,
        r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS",
        "illegal memory access",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA runtime API, error 700",
    ),
    CrashPattern(
        Kind.CUDA,
        r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED"
        r"|an illegal instruction was encountered|CUDA error: misaligned address"
        r"|hardware stack error|CUDA error: launch timed out",
        "a kernel failed on the device",
        "RuntimeError: CUDA error: unspecified launch failure",
        "CUDA runtime API, errors 702 to 719",
    ),
    CrashPattern(
        Kind.CUDA,
        r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable"
        r"|GPU is lost|Unable to determine the device handle|system not yet initialized"
        r"|Driver/library version mismatch|CUDA driver initialization failed"
        r"|Found no NVIDIA driver|CUDA error: unknown error|CUDA error: initialization error",
        "the GPU or its driver does not answer",
        "RuntimeError: No CUDA GPUs are available: no CUDA-capable device is detected",
        "CUDA runtime API, errors 46, 100, 802; NVML",
    ),
    CrashPattern(
        Kind.CUDA,
        r"HIP error: |HSA_STATUS_ERROR",
        "an error of the GPU",
        "RuntimeError: HIP error: invalid device function",
        "c10/hip; ROCr hsa.h",
    ),
    CrashPattern(
        Kind.CUDA,
        r"NRT_EXEC_HW_ERR_\w+|NRT_HW_ERROR|NRT_EXEC_UNIT_UNRECOVERABLE"
        r"|nrt_\w+ status=(?:6|101|120[01235])\b|status_code=(?:6|101|120[01235])\b",
        "a Neuron hardware error",
        "ERROR  NRT:nrt_infodump  Failure: NRT_EXEC_HW_ERR_HBM_UE in nrt_execute()",
        "Neuron 2.29 nrt_status.h",
    ),
    CrashPattern(
        Kind.NAN,
        r"NRT_EXEC_COMPLETED_WITH_NUM_ERR|status(?:_code)?=1003\b",
        "the Neuron device computed NaN",
        'RuntimeError: nrt_execute: status=1003, error message="Completed with numerical errors"',
        "aws-neuron/aws-neuron-sdk#673",
    ),
    CrashPattern(
        Kind.CUDA,
        r"ncclUnhandledCudaError|unhandled cuda error",
        "NCCL met a CUDA error",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "torch/csrc/distributed/c10d/NCCLUtils.cpp",
        PatternTier.ECHO,
    ),
)

_STORAGE: Final = (
    CrashPattern(
        Kind.STORAGE,
        r"(?i:no space left on device)|\[Errno 28\]|\[Errno 122\]|(?i:disk quota exceeded)",
        "file system full",
        "OSError: [Errno 28] No space left on device: '/fsx/ckpt/step_100/model.pt'",
        "errno 28, 122",
    ),
    CrashPattern(
        Kind.STORAGE,
        r"(?i:stale (?:NFS )?file handle)|\[Errno 116\]",
        "stale file handle",
        "OSError: [Errno 116] Stale file handle: '/fsx/data/shard-0001.bin'",
        "errno 116",
    ),
    CrashPattern(
        Kind.STORAGE,
        r"(?i:read-only file system)|\[Errno 30\]",
        "read-only file system",
        "OSError: [Errno 30] Read-only file system: '/fsx/ckpt'",
        "errno 30",
    ),
    CrashPattern(
        Kind.STORAGE,
        r"\[Errno 5\]|OSError: .*Input/output error|: Input/output error$",
        "input/output error",
        "OSError: [Errno 5] Input/output error",
        "errno 5",
    ),
    CrashPattern(
        Kind.STORAGE,
        r"(?i:transport endpoint is not connected|cannot send after transport endpoint shutdown)"
        r"|\[Errno 10[78]\]",
        "the file system's server is not connected",
        "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/ckpt'",
        "errno 107, 108: Lustre's eviction",
    ),
    CrashPattern(
        Kind.STORAGE,
        r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos",
        "a checkpoint could not be written",
        "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed"
        " writing file data/12: file write failed",
        "caffe2/serialize/inline_container.cc",
    ),
)

_NUMBERS: Final = (
    CrashPattern(
        Kind.NAN,
        r"found (?:NaN|Inf) in |Unexpected result (?:nan|inf)\b",
        "NaN or infinity in the loss or gradient",
        "AssertionError: Rank 7: found NaN in local forward loss calculation. Device: 7, node:"
        " ip-10-1-0-4",
        "Megatron-LM pretrain_gpt.py, rerun_state_machine.py",
    ),
    CrashPattern(
        Kind.NAN,
        r"returned nan values in its \d+th output"
        r"|The loss returned in `training_step` is (?:nan|inf)"
        r"|Current loss scale already at minimum|(?i:\bloss (?:is|was|became) (?:nan|inf))",
        "NaN or infinity in the loss or gradient",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "torch autograd; Lightning; DeepSpeed loss_scaler.py",
    ),
)

_NETWORK: Final = (
    CrashPattern(
        Kind.NETWORK,
        r"NET/IB : .*Got async event : port error|NET/IB : .*port .*down|ibv_\w+ failed with error",
        "a network port failed",
        "ip-10-1-0-4:411:733 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        "NCCL src/transport/net_ib.cc",
        PatternTier.ECHO,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"Watchdog caught collective operation timeout",
        "a collective timed out",
        "[rank0]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056,"
        " NumelOut=5056, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.",
        "NVIDIA/nccl#1409",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"collective (?:operation )?timeout|Some NCCL operations have failed or timed out"
        r"|Exception \(either an error or timeout\) detected by watchdog"
        r"|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|flight recorder dump signal|Received a dump signal",
        "a collective timed out",
        "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78]"
        " Timed out waiting 8000ms for recv operation to complete",
        "seen with torch 2.13",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"ncclRemoteError|remote process exited or there was a network error"
        r"|NCCL WARN .*[Cc]onnection closed by remote peer|Got completion from peer",
        "a peer was lost",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
        " prematurely.",
        "NVIDIA/nccl#2076",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"gloo/transport/\S+\] .*(?:Connection (?:closed|reset) by peer|Read error|Write error)"
        r"|Gloo connectFullMesh failed|Connection closed by peer \[",
        "a peer was lost",
        "[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"
        ":553] Connection closed by peer [127.0.0.1]:22707.",
        "seen with torch 2.13",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"ncclSystemError|ncclInternalError|unhandled system error|NCCL WARN Net ?: "
        r"|NET/OFI .*failed|NRT_NETWORK_PROXY_FAILURE|NRT_TIMEOUT|nrt_\w+ status=(?:5|1206)\b",
        "NCCL's network failed",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or"
        " device error.",
        "NVIDIA/nccl#975",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"DistBackendError",
        "a collective failed",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
        "NCCLUtils.hpp:268, internal error, NCCL version 2.21.5",
        "NVIDIA/nccl#2076",
        PatternTier.ECHO,
        names_node=False,
    ),
    CrashPattern(
        Kind.NETWORK,
        r"DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousTimeoutError"
        r"|recvValue failed|sendBytes failed|TCPStore.*(?:timed out|failed)"
        r"|(?:client|server) socket has (?:timed out|failed to connect)|Broken pipe$",
        "the rendezvous store was lost",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4"
        " clients joined.",
        "torch/csrc/distributed/c10d/TCPStore.cpp",
        PatternTier.ECHO,
        names_node=False,
    ),
)

_DEATHS: Final = (
    CrashPattern(
        Kind.CRASH,
        r"EADDRINUSE|Address already in use",
        "its port is in use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local"
        " network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message:"
        " address already in use",
        "torch/csrc/distributed/c10d/socket.cpp",
    ),
    CrashPattern(
        Kind.CRASH,
        r"^(?:\S+: ?)?(?:Fatal Python error: |Segmentation fault|\*\*\* Process received signal"
        r"|double free or corruption|free\(\): invalid|malloc\(\): |corrupted size vs\. prev_size)"
        r"|: Assertion `.*' failed\.",
        "a rank died in native code",
        "Fatal Python error: Segmentation fault",
        "CPython Python/pylifecycle.c; glibc; Open MPI",
        named=True,
    ),
    CrashPattern(
        Kind.CRASH,
        r"what\(\): ",
        "a rank died of a C++ exception",
        "  what():  basic_string::_M_construct null not valid",
        "libstdc++",
        named=True,
    ),
    CrashPattern(
        Kind.CRASH,
        r"ncclInvalidUsage|ncclInvalidArgument",
        "NCCL was used wrongly",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "NVIDIA/nccl#1241",
    ),
    CrashPattern(
        Kind.CRASH,
        r"MPI_ABORT was invoked on rank \d+|application called MPI_Abort\(",
        "a rank called MPI_Abort",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD with errorcode 1.",
        "Open MPI help-mpi-api.txt; MPICH",
        PatternTier.WRAPPER,
    ),
    CrashPattern(
        Kind.CRASH,
        r"srun: error: \S+: tasks? \S+: (?:Segmentation fault|Aborted|Bus error|Illegal instruction"
        r"|Floating point exception)",
        "a rank died in native code",
        "srun: error: n1: task 1: Segmentation fault (core dumped)",
        "srun 22.05",
        PatternTier.WRAPPER,
    ),
)

ROWS: Final = (
    *_SLURM,
    *_MEMORY,
    *_DEVICE,
    *_STORAGE,
    *_NUMBERS,
    # EADDRINUSE comes with DistNetworkError: the deaths stand before the network's echoes.
    *_DEATHS,
    *_NETWORK,
)
