"""The ways in which training programs save: how each writes a step and how it reads one.

A name says what the program puts into the file and how it publishes it. The same names are in the
recording checkpoints.json. Only DCP is a checkpoint of several ranks; of the others rank 0 saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

State = dict[str, Any]
Save = Callable[[State, Path, int, int], None]
Load = Callable[[Path, State, Any], State]


@dataclass(frozen=True)
class Format:
    """`save(state, directory, step, rank)`; `load(path, example, device)` returns the state.

    `load` raises what the library raises where the checkpoint is damaged.
    """

    name: str
    save: Save
    load: Load


def _write_by_rename(name: str, wrap: Callable[[State, int], Any]) -> Save:
    def save(state: State, directory: Path, step: int, rank: int) -> None:
        import torch

        if rank != 0:
            return
        final = directory / name.format(step=step)
        part = final.with_name(final.name + ".tmp")
        torch.save(wrap(state, step), part)
        part.rename(final)

    return save


def _write_in_place(name: str, wrap: Callable[[State, int], Any], **how: Any) -> Save:
    def save(state: State, directory: Path, step: int, rank: int) -> None:
        import torch

        if rank == 0:
            torch.save(wrap(state, step), directory / name.format(step=step), **how)

    return save


def _plain(state: State, step: int) -> State:
    return state


def _renamed_step(key: str) -> Callable[[State, int], State]:
    def wrap(state: State, step: int) -> State:
        rest = {name: value for name, value in state.items() if name != "step"}
        return {**rest, key: step}

    return wrap


def _step_on_device(state: State, step: int) -> State:
    import torch

    device = next(iter(state["weights"].values())).device
    return {**state, "step": torch.tensor(step, device=device)}


def _nested(state: State, step: int) -> State:
    rest = {name: value for name, value in state.items() if name != "step"}
    return {**rest, "trainer": {"global_step": step}}


def _without_step(state: State, step: int) -> State:
    return {name: value for name, value in state.items() if name != "step"}


def _read_file(step_of: Callable[[State, Path], int]) -> Load:
    def load(path: Path, example: State, device: Any) -> State:
        import torch

        state = torch.load(path, map_location=device, weights_only=True)
        return {**state, "step": step_of(state, path)}

    return load


def _key(name: str) -> Callable[[State, Path], int]:
    return lambda state, path: int(state[name])


def _step_of_name(state: State, path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _flatten(state: State) -> dict[str, Any]:
    parts = ("weights", "momentum", "ballast")
    return {f"{part}.{name}": value for part in parts for name, value in state[part].items()}


def _save_dcp(state: State, directory: Path, step: int, rank: int) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    alone = not dist.is_initialized()
    dcp.save(
        {**_flatten(state), "step": step},
        checkpoint_id=str(directory / f"step-{step}"),
        no_dist=alone,
    )


def _load_dcp(path: Path, example: State, device: Any) -> State:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    parts = ("weights", "momentum", "ballast")
    state: State = {
        part: {name: torch.empty_like(value) for name, value in example[part].items()}
        for part in parts
    }
    flat: dict[str, Any] = {**_flatten(state), "step": -1}
    dcp.load(flat, checkpoint_id=str(path), no_dist=not dist.is_initialized())
    return {**state, "step": flat["step"]}


def _save_dcp_async(state: State, directory: Path, step: int, rank: int) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    saving = dcp.async_save(
        {**_flatten(state), "step": step}, checkpoint_id=str(directory / f"step-{step}")
    )
    saving.result()


def _save_safetensors(state: State, directory: Path, step: int, rank: int) -> None:
    from safetensors.torch import save_file

    if rank == 0:
        save_file(_flatten(state), str(directory / f"weights_{step}.safetensors"))


def _load_safetensors(path: Path, example: State, device: Any) -> State:
    from safetensors.torch import load_file

    flat = load_file(str(path), device=str(device))
    state: State = {"weights": {}, "momentum": {}, "ballast": {}, "step": _step_of_name({}, path)}
    for name, value in flat.items():
        part, _, own = name.partition(".")
        state[part][own] = value
    return state


_ALL = (
    Format("rename", _write_by_rename("step-{step}.pt", _plain), _read_file(_key("step"))),
    Format("inplace", _write_in_place("step-{step}.pt", _plain), _read_file(_key("step"))),
    Format("dcp", _save_dcp, _load_dcp),
    Format("dcp_async", _save_dcp_async, _load_dcp),
    Format(
        "latest",
        _write_in_place("ckpt_latest.pt", _renamed_step("global_step")),
        _read_file(_key("global_step")),
    ),
    Format(
        "nanogpt",
        _write_in_place("ckpt.pt", _renamed_step("iter_num")),
        _read_file(_key("iter_num")),
    ),
    Format(
        "epochs",
        _write_in_place("checkpoint_epoch_{step}.pth", _renamed_step("epoch")),
        _read_file(_key("epoch")),
    ),
    Format(
        "iteration",
        _write_in_place("state_{step}.pt", _renamed_step("iteration")),
        _read_file(_key("iteration")),
    ),
    Format(
        "tensor_step", _write_in_place("step-{step}.pt", _step_on_device), _read_file(_key("step"))
    ),
    Format(
        "nested",
        _write_in_place("step-{step}.pt", _nested),
        _read_file(lambda state, path: int(state["trainer"]["global_step"])),
    ),
    Format(
        "legacy",
        _write_in_place("step-{step}.pt", _plain, _use_new_zipfile_serialization=False),
        _read_file(_key("step")),
    ),
    Format(
        "step_in_name",
        _write_in_place("model_step_{step}.pt", _without_step),
        _read_file(_step_of_name),
    ),
    Format("safetensors", _save_safetensors, _load_safetensors),
)
FORMATS = {form.name: form for form in _ALL}
