"""Checkpoints of each framework, written byte by byte: no framework is needed to make them."""

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hpctl.checkpoints.formats import manifest
from tests.checkpoints.ocdbt_files import orbax_files, orbax_zarr_files


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def value(item) -> bytes:
    if isinstance(item, bytes):
        return item  # opcodes already
    if isinstance(item, bool):
        return b"\x88" if item else b"\x89"
    if isinstance(item, int):
        return b"I%d\n" % item
    if isinstance(item, str):
        return text(item)
    if isinstance(item, Mapping):
        return b"}(" + b"".join(value(k) + value(v) for k, v in item.items()) + b"u"
    assert item is None
    return b"N"


def instance(module: str, name: str, state: Mapping[str, object]) -> bytes:
    return b"c%s\n%s\n)\x81" % (module.encode(), name.encode()) + value(state) + b"b"


def pickle_of(item) -> bytes:
    return b"\x80\x02" + value(item) + b"."


def dcp_metadata(items: list[tuple[str, int, int]]) -> bytes:
    module = "torch.distributed.checkpoint.filesystem"
    pairs = b""
    for name, offset, length in items:
        state = {"relative_path": name, "offset": offset, "length": length}
        key = instance("torch.distributed.checkpoint.metadata", "MetadataIndex", {"fqn": "w"})
        pairs += key + instance(module, "_StorageInfo", state)
    fields = {"state_dict_metadata": {}, "storage_data": b"}(" + pairs + b"u"}
    return pickle_of(instance("torch.distributed.checkpoint.metadata", "Metadata", fields))


def torch_save(saved, tensors: int = 1) -> bytes:
    out, parts = io.BytesIO(), {"data.pkl": pickle_of(saved)}
    parts |= {f"data/{number}": bytes(range(1, 65)) for number in range(tensors)}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in {**parts, "version": b"3\n"}.items():
            # Without a ZipInfo the time would be in it, and no two files alike.
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), raw)
    return out.getvalue()


def safetensors(names: list[str]) -> bytes:
    header = {
        name: {"dtype": "U8", "shape": [16], "data_offsets": [16 * at, 16 * at + 16]}
        for at, name in enumerate(names)
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\1" * 16 * len(names)


def write(directory: Path, files: Mapping[str, bytes]) -> Path:
    for name, raw in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return directory


def generic(root: Path, name: str, step: int) -> Path:
    """A whole checkpoint of one file under hpctl's own manifest."""
    directory = write(root / name, {"data": b"x" * 100})
    file = manifest.make_file_manifest_entry(directory / "data", directory)
    manifest.write_manifest(directory, step=step, world_size=1, files=[file])
    return directory


def dcp_files(ranks: int = 3, step: int = 1) -> dict[str, bytes]:
    item = torch_save({"x": step})
    rows = [(f"__{r}_0.distcp", at * len(item), len(item)) for r in range(ranks) for at in (0, 1)]
    data = {f"__{rank}_0.distcp": item + item for rank in range(ranks)}
    return {**data, ".metadata": dcp_metadata(rows)}


def torch_dist_files() -> dict[str, bytes]:
    answer = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
    }
    common = torch_save({"iteration": 40, "global_step": 40})
    return {"common.pt": common, "metadata.json": json.dumps(answer).encode(), **dcp_files()}


def _megatron_legacy() -> dict[str, bytes]:
    sizes = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "use_distributed_optimizer": True,
    }
    saved = torch_save({"iteration": 40, "args": instance("argparse", "Namespace", sizes)})
    files = {}
    for tensor in range(2):
        for pipeline in range(2):
            rank = f"mp_rank_{tensor:02d}_{pipeline:03d}"
            files[f"{rank}/distrib_optim.pt"] = torch_save({})
            files[f"{rank}/model_optim_rng.pt"] = saved
    return files


def deepspeed_files(step: int = 40) -> dict[str, bytes]:
    sizes = {"dp_world_size": 3, "mp_world_size": 2, "global_steps": step, "optimizer": None}
    files = {f"mp_rank_{m:02d}_model_states.pt": torch_save(sizes) for m in range(2)}
    for rank in range(3):
        for part in range(2):
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_{part:02d}_optim_states.pt"
            files[name] = torch_save({})
    return files


def _zero3() -> dict[str, bytes]:
    sizes = {"dp_world_size": 2, "mp_world_size": 1, "global_steps": 40, "optimizer": None}
    files = {}
    for rank in range(2):
        files[f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"] = torch_save(sizes)
        files[f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = torch_save({})
    return files


def hf_files() -> dict[str, bytes]:
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return {
        **{shard: safetensors([name]) for name, shard in names.items()},
        "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
        "optimizer.pt": torch_save({"state": {}}),
        "scheduler.pt": torch_save({"last_epoch": 4}),
        "rng_state_0.pth": torch_save({}),
        "trainer_state.json": json.dumps({"global_step": 40, "log_history": []}).encode(),
    }


def _hf_deepspeed() -> dict[str, bytes]:
    inner = {f"global_step40/{name}": raw for name, raw in deepspeed_files().items()}
    kept = ("trainer_state.json",)
    inner["latest"] = b"global_step40"
    return {**inner, **{name: raw for name, raw in hf_files().items() if name in kept}}


def _hf_fsdp() -> dict[str, bytes]:
    files = {f"pytorch_model_fsdp_0/{name}": raw for name, raw in dcp_files().items()}
    files |= {f"optimizer_0/{name}": raw for name, raw in dcp_files().items()}
    return files | {n: hf_files()[n] for n in ("scheduler.pt", "trainer_state.json")}


def lightning_deepspeed_files(step: int = 40) -> dict[str, bytes]:
    client = {"pytorch-lightning_version": "2.6.6", "global_step": step, "lr_schedulers": b"]"}
    sizes = {"dp_world_size": 2, "mp_world_size": 1, "global_steps": 2 * step, "optimizer": None}
    files = {
        f"checkpoint/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_save({})
        for rank in range(2)
    }
    model = {"checkpoint/mp_rank_00_model_states.pt": torch_save(sizes | client)}
    return {**model, **files, "latest": b"checkpoint"}


def _titan_hf() -> dict[str, bytes]:
    return {name: raw for name, raw in hf_files().items() if "safetensors" in name}


def _nemo() -> dict[str, bytes]:
    return {f"weights/{name}": raw for name, raw in torch_dist_files().items()}


def _torchtune() -> dict[str, bytes]:
    """Without the index, which it writes and goes on without."""
    return {f"model-0000{n}-of-00002.safetensors": safetensors([f"a{n}"]) for n in (1, 2)}


def legacy_stream(step: int) -> bytes:
    """What torch.save writes with `_use_new_zipfile_serialization=False`: the step is a tensor."""

    def name(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    storage = (
        b"(" + name("storage") + b"ctorch\nLongStorage\n" + name("0") + name("cpu") + b"K\1NtQ"
    )
    tensor = b"(" + storage + b"K\0))\x89ccollections\nOrderedDict\n)RtR"
    saved = b"\x80\2}" + name("step") + b"ctorch._utils\n_rebuild_tensor_v2\n" + tensor + b"s."
    begun = b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\2M\xe9\3." + b"\x80\2}."
    keys = b"\x80\2]" + name("0") + b"a."
    return begun + saved + keys + (1).to_bytes(8, "little") + step.to_bytes(8, "little")


def flax_map(step: int) -> bytes:
    """What flax.serialization.to_bytes makes of a step below 128 and an array of two numbers."""
    array = b"\x93\x91\2\xa7float32\xc4\x08" + b"\1" * 8
    return b"\x82\xa4step" + bytes([step]) + b"\xa1w\xc7" + bytes([len(array)]) + b"\1" + array


def accelerate_files() -> dict[str, bytes]:
    """What save_state of two ranks writes, in its order."""
    saved = torch_save({"step": 3})
    names = ("optimizer.bin", "scheduler.bin", "random_states_0.pkl", "random_states_1.pkl")
    return {"model.safetensors": safetensors(["a"]), **dict.fromkeys(names, saved)}


WHOLE: dict[str, tuple[str, str, Callable[[], dict[str, bytes]]]] = {
    "torch-dcp": ("torch-dcp", "step-40", dcp_files),
    "megatron-torch-dist": ("megatron-torch-dist", "iter_0000040", torch_dist_files),
    "megatron-legacy": ("megatron-legacy", "iter_0000040", _megatron_legacy),
    "deepspeed": ("deepspeed", "global_step40", deepspeed_files),
    "deepspeed, ZeRO 3": ("deepspeed", "global_step40", _zero3),
    "hf-trainer": ("hf-trainer", "checkpoint-40", hf_files),
    "hf-trainer, DeepSpeed": ("hf-trainer", "checkpoint-40", _hf_deepspeed),
    "hf-trainer, FSDP": ("hf-trainer", "checkpoint-40", _hf_fsdp),
    "torchtitan-hf": ("torchtitan-hf", "step-40", _titan_hf),
    "torchtune": ("torchtune", "epoch_40", _torchtune),
    "orbax": ("orbax", "40", orbax_files),
    "orbax, zarr": ("orbax", "run_40", orbax_zarr_files),
    "lightning, sharded": (
        "lightning",
        "epoch=1-step=40.ckpt",
        lambda: {**dcp_files(), "meta.pt": torch_save({"global_step": 40})},
    ),
    "lightning, DeepSpeed": ("lightning", "epoch=1-step=40.ckpt", lightning_deepspeed_files),
    "nemo": ("nemo", "llama--loss=1.5-step=40-consumed_samples=640.0-last", _nemo),
}
"""Name: the format's name, the directory's, and its files."""


OPTIONAL = {"rng_state_0.pth", "commit_success.txt", "_CHECKPOINT_METADATA"}
"""The Trainer goes on without the first. Without Orbax's a step may be an older release's: what
becomes of those is shown in test_checkpoint_orbax.py."""
BESIDE = {"torchtune": {"recipe_state/recipe_state.pt": torch_save({"epochs_run": 41})}}
"""What is of a checkpoint and lies beside its directory."""


def make(root: Path, name: str) -> Path:
    """Write one of WHOLE, `.metadata` and the state last, and say where."""
    _, directory, files = WHOLE[name]
    path = write(root / directory, files())
    if name == "megatron-legacy":
        (root / "latest_checkpointed_iteration.txt").write_text("40")
    write(root, BESIDE.get(name, {}))
    return path
