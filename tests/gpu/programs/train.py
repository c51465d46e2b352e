"""Data-parallel training on CUDA or the CPU, bit for bit the same however often it is restarted.

It takes the options of hpctl's own demo program (hpctl/sandbox/training), keeps the same record of
its attempts, and saves with torch. The ranks reduce their gradients over gloo, because NCCL refuses
two ranks on one GPU. The update is written out, because the first use of torch.optim imports
torch's compiler. Every rank uses the first GPU: the sandbox's nodes share the machine's.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

WIDTH, ROWS = 256, 64
"""Of the hidden layers; rows of a step over all ranks."""
RATE, MOMENTUM = 1e-3, 0.9


def parse() -> argparse.Namespace:
    """Parse the command line; what hpctl tells a job is in the environment."""
    get = os.environ.get
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--checkpoint-dir", type=Path, default=get("HPCTL_CHECKPOINT_DIR"), dest="directory"
    )
    parser.add_argument("--resume-from", default=get("HPCTL_RESUME_FROM", ""))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.1, help="least seconds of a step")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def main() -> None:
    """Train to the last step."""
    asked_to_save: list[int] = []
    # Before torch is imported: the signal's default action would end the rank.
    signal.signal(signal.SIGUSR1, lambda number, frame: asked_to_save.append(number))
    born = time.monotonic()
    options = parse()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    from hpctl.sandbox.training.model import TrainingProgressRecorder

    if options.device == "cuda":
        # One thread of a CPU is deterministic anyway, and this imports torch's compiler.
        torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    rank, size, attempt = find_place()
    options.directory.mkdir(parents=True, exist_ok=True)
    meet = options.directory.parent / f".meet-{options.directory.name}-{attempt}"
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size)
    device = torch.device(options.device)
    model, momentum = make_model(torch, device)
    first = 0
    if options.resume_from:
        saved = torch.load(options.resume_from, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        momentum = saved["momentum"]
        first = int(saved["step"])
    recorder = None
    if rank == 0:
        print(f"started in {time.monotonic() - born:.2f} s on {name_device(torch, device)}")
        hosts = [os.environ.get("SLURMD_NODENAME", "")]
        recorder = TrainingProgressRecorder(options.directory, attempt, first, hosts)
    loss = 0.0
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        loss = train_step(torch, dist, model, momentum, step, rank, size, device)
        wants_save = step % options.checkpoint_every == 0 or step == options.steps
        if recorder is not None:
            if wants_save or asked_to_save:
                asked_to_save.clear()
                save(torch, options.directory, model, momentum, step)
            recorder.step(step, loss)
        time.sleep(max(0.0, options.step_s - (time.monotonic() - began)))
    if recorder is not None:
        recorder.final(flat_weights(torch, model), options.steps)
        recorder.close()
    dist.destroy_process_group()


def find_place() -> tuple[int, int, str]:
    """Return rank, size, and a name of this attempt that no other has."""
    get = os.environ.get
    rank = int(get("RANK") or get("SLURM_PROCID") or 0)
    size = int(get("WORLD_SIZE") or get("SLURM_STEP_NUM_TASKS") or get("SLURM_NTASKS") or 1)
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "HPCTL_ATTEMPT")
    return rank, size, ".".join(get(name) or "0" for name in names)


def make_model(torch, device):
    """Return a small network and the momentum of its parameters, the same on every rank."""
    torch.manual_seed(1)
    layers = [
        torch.nn.Linear(32, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, 1),
    ]
    # On the CPU first: the first weights are then the same on every device.
    model = torch.nn.Sequential(*layers).to(device)
    return model, [torch.zeros_like(each) for each in model.parameters()]


def train_step(torch, dist, model, momentum, step, rank, size, device) -> float:
    """Do one step on this rank's rows of the batch; return the loss over all ranks."""
    random = torch.Generator().manual_seed(7_000_003 * step)
    rows = torch.randn((ROWS, 32), generator=random)[rank::size].to(device)
    targets = torch.sin(rows.sum(dim=1, keepdim=True))
    model.zero_grad()
    loss = ((model(rows) - targets) ** 2).sum() / ROWS
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([each.grad.reshape(-1) for each in parameters] + [loss.detach().reshape(1)])
    dist.all_reduce(flat)
    place = 0
    with torch.no_grad():
        for each, moved in zip(parameters, momentum, strict=True):
            gradient = flat[place : place + each.numel()].view_as(each)
            place += each.numel()
            moved.mul_(MOMENTUM).add_(gradient)
            each.sub_(RATE * moved)
    return float(flat[-1])


def save(torch, directory: Path, model, momentum, step: int) -> None:
    """Write a checkpoint, whole or not at all."""
    state = {"step": step, "model": model.state_dict(), "momentum": momentum}
    temporary = directory / f"step-{step}.pt.tmp"
    torch.save(state, temporary)
    temporary.rename(directory / f"step-{step}.pt")


def flat_weights(torch, model):
    """Return all weights as one array of numpy."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).cpu().numpy()


def name_device(torch, device) -> str:
    """Return what the device is called."""
    return torch.cuda.get_device_name(0) if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    main()
    sys.exit(0)
