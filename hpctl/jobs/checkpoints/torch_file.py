"""Single files of torch.save: `.pt` and `.pth` that say their step, and Lightning's `.ckpt`.

torch.save writes a zip archive whose directory and end record come last, so a file that ends in
them and whose directory fits was written to its end. Lightning records `global_step` in it, at
the top. The older stream format (no zip) has no end mark: it cannot be proved.
"""

from hpctl.jobs.checkpoints import archives, torch_dcp
from hpctl.jobs.checkpoints.files import (
    Claim,
    Listing,
    NotWhole,
    Place,
    TooLarge,
    Unfinished,
    exists,
    modified_ns,
    opened,
    step_in,
)
from hpctl.jobs.checkpoints.pickle_reader import SavedFields

SUFFIXES = (".ckpt", ".pt", ".pth")
_QUICK_BYTES = 8 << 20
FIELDS = frozenset(
    {
        *("global_step", "global_steps", "step", "iteration", "optimizer", "save_only_model"),
        *("dp_world_size", "mp_world_size", "world_size", "args", "common"),
        *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        *("expert_model_parallel_size", "use_distributed_optimizer", "no_save_optim"),
        *("pytorch-lightning_version", "lr_schedulers"),
    }
)
"""What any format wants to know of a saved object."""
_STEPS = ("global_step", "global_steps", "step", "iteration")


def prove(root: Place, name: str, *, deep: bool = False) -> int:
    """Raise NotWhole where a file is no complete archive of torch.save. Three or four reads.

    When it was last written, in ns since the epoch.
    """
    with opened(root, name) as file:
        archive = archives.read(file)
        archive.member("/data.pkl")
        if deep:
            archive.compare()
        return file.modified_ns


def top(root: Place, name: str, limit: int | None = None) -> SavedFields:
    """The FIELDS of what was saved, never executed. Raises NotWhole (TooLarge), OSError.

    A tenth of a second of one core for each MB of its pickle; the tensors are no part of that.
    """
    with opened(root, name) as file:
        return archives.read(file).saved(FIELDS, limit)


def step_of(saved: SavedFields) -> int | None:
    """The step that a saved dict records under one of the usual names."""
    steps = (saved.integer(name) for name in _STEPS)
    return next((step for step in steps if step is not None), None)


def claim_file(layout: Listing) -> Claim | None:
    """A `.pt` or `.pth` file whose own content records a step: others may be anything."""
    path = layout.path
    if layout.names is not None or path.suffix not in (".pt", ".pth"):
        return None
    try:
        step = step_of(top(path, ""))
    except NotWhole:
        if step_in(path.name) is None:
            return None
        raise
    return None if step is None else Claim(step, None, lambda deep: _prove_file(path, deep))


def claim_lightning(layout: Listing) -> Claim | None:
    """A `.ckpt` file, or a `.ckpt` directory of the sharded strategies (`meta.pt` last)."""
    path = layout.path
    if path.suffix != ".ckpt":
        return None
    if layout.names is None:

        def prove_file(deep: bool) -> None:
            _prove_file(path, deep)
            resumable(path, "")

        return Claim(_recorded(path), None, prove_file)
    if not torch_dcp.looks_so(layout.names):
        return None

    def prove_sharded(deep: bool) -> None:
        unfinished(path)
        if not exists(path, "meta.pt"):
            raise Unfinished("meta.pt is missing: it is written last")
        prove(path, "meta.pt", deep=deep)
        resumable(path, "meta.pt")
        torch_dcp.prove(path, deep=deep)
        if modified_ns(path, "meta.pt") < modified_ns(path, torch_dcp.METADATA):
            raise NotWhole("meta.pt is older than .metadata: saved over, and not to the end")

    return Claim(step_in(path.name), None, prove_sharded)


def resumable(root: Place, name: str) -> None:
    """Raise NotWhole where Lightning saved the weights alone (`save_weights_only`).

    Its fit() ends with a KeyError on such a one, and a job that is told to resume from it would
    end so each time. Lightning writes `lr_schedulers` with all else, be it an empty list.
    """
    saved = top(root, name)
    if saved.get("pytorch-lightning_version") and saved.get("lr_schedulers") is None:
        raise NotWhole(f"{name or root.name} has only the weights: Lightning cannot resume from it")


def unfinished(path: Place) -> None:
    """Raise NotWhole where NeMo's `-unfinished` marker lies beside a checkpoint.

    Source: NeMo, nemo/lightning/pytorch/callbacks/model_checkpoint.py.
    """
    marker = path.name.removesuffix(".nemo").removesuffix(".ckpt") + "-unfinished"
    if exists(path.parent, marker):
        raise Unfinished(f"its marker {marker} is still there")


def _recorded(path: Place) -> int | None:
    named = step_in(path.name)
    try:
        # The step is only needed to order the files, and a large pickle takes seconds to read.
        step = step_of(top(path, "", None if named is None else _QUICK_BYTES))
    except TooLarge:
        step = None
    return named if step is None else step


def _prove_file(path: Place, deep: bool) -> None:
    unfinished(path)
    prove(path, "", deep=deep)
