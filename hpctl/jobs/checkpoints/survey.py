"""What claims to be a checkpoint in one place, and the proof of one claim.

A framework is one `Format` in FORMATS: how to recognise one of its checkpoint directories and
read its step, and how to prove that it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass, replace

from hpctl.jobs.checkpoints import (
    deepspeed,
    hf_trainer,
    manifest,
    megatron,
    nvrx,
    torch_dcp,
    torch_file,
)
from hpctl.jobs.checkpoints.claim import (
    CannotTell,
    Claim,
    Defect,
    Format,
    Layout,
    NotWhole,
    Unfinished,
    look,
)
from hpctl.jobs.checkpoints.files import Place, for_each
from hpctl.jobs.checkpoints.remote import Remote

MAX_ENTRIES = 100_000
"""Entries of the directory that are looked at. More is an error, not a smaller answer."""

TEMPORARY = ".tmp"
"""A directory with this in its name is not finished, whatever it holds: its writer still means
to rename it, so a path given out now could be gone when the job opens it."""

_OTHERS = re.compile(
    r"\..*|(.*[_-])?logs?|tensorboard|tb|wandb|mlruns|.*tfevents.*|.*\.(log|out|err|txt|jsonl)",
    re.DOTALL,
)
"""Names of what lies beside checkpoints: a first start is not to be warned of its own log."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was proved whole (by sizes, or by digests where `deep`)."""

    path: Place
    step: int | None
    world_size: int | None
    format: str
    deep: bool
    origin: Place | None = None
    """Where it was fetched from."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A directory that was not chosen. `unreadable`: it may be whole, but the storage failed, or
    a file is larger than hpctl reads.

    `claimed` is false for one that nothing marks as a finished checkpoint: still being written,
    or something else altogether. `format` is None where none was recognised; `holds` then says
    what is there, `11 files`: it may be a checkpoint in the program's own format.
    """

    path: Place
    why: str
    unreadable: bool = False
    claimed: bool = True
    format: str | None = None
    holds: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something of a known format that says of itself which step it is."""

    path: Place
    format: str
    claim: Claim


def _generic(layout: Layout) -> Claim | Defect | None:
    document = manifest.read(layout.path) if layout.has(manifest.NAME) else None
    if document is None or isinstance(document, manifest.Foreign):
        return None  # many a tool has a file of that name: another format may know the directory
    if isinstance(document, Defect):
        return document
    whole = document

    def prove(deep: bool) -> Defect | None:
        return manifest.verify(layout.path, whole, deep=deep)

    return Claim(whole.step, whole.world_size, prove)


FORMATS: tuple[Format, ...] = (
    Format("generic", _generic),
    # A framework that wraps another's files comes before that other.
    Format("hf-trainer", hf_trainer.claim),
    Format("nemo", megatron.claim_nemo),
    Format("lightning", torch_file.claim_lightning),
    Format("lightning", deepspeed.claim_lightning),
    Format("megatron-torch-dist", megatron.claim_dist),
    Format("megatron-legacy", megatron.claim_legacy),
    Format("deepspeed", deepspeed.claim),
    Format("torch-dcp", torch_dcp.claim),
    Format("torchtitan-hf", hf_trainer.claim_index),
    Format("torch-save", torch_file.claim_file),
    Format(nvrx.FORMAT, nvrx.claim),
)


def survey(place: Place, world_size: int | None = None) -> tuple[list[Candidate], list[PassedOver]]:
    """What claims to be a checkpoint among the immediate children, newest step first, and the
    others. Raises OSError where the place itself cannot be read: that is never "nothing".

    The place may also be one of NVRx's local checkpoints itself, or hold several.
    """
    passed: list[PassedOver] = []
    found, loose = _children(place)
    names = frozenset(child.name for child, is_file in found if not is_file)
    candidates = _iterations(Layout(place, names, world_size))
    if candidates:
        found = [(child, is_file) for child, is_file in found if not child.name.isdigit()]
    for (_, is_file), claimed in zip(
        found, for_each(place, found, lambda child: claim_of(child[0], world_size)), strict=True
    ):
        if isinstance(claimed, Candidate) and claimed.format == nvrx.FORMAT:
            candidates += _iterations(look(claimed.path, world_size))
        elif isinstance(claimed, Candidate):
            candidates.append(claimed)
        elif claimed.claimed or not is_file:
            passed.append(claimed)
        else:
            loose += 1
    if loose and not candidates and not any(each.claimed for each in passed):
        passed.append(_unknown(place, loose))
    # Two of one step: any whole one will do, but the choice must not depend on the scan's order.
    candidates.sort(key=_newness, reverse=True)
    return candidates, passed


def claim_of(path: Place, world_size: int | None = None) -> Candidate | PassedOver:
    """Which format a directory or file is of and what it claims, or why it is passed over."""
    if TEMPORARY in path.name:
        return PassedOver(path, "still under its temporary name", claimed=False)
    if not path.name.isprintable():
        # The path goes through a shell variable and one line of text on its way to the job.
        return PassedOver(path, "its name has unprintable characters", claimed=False)
    try:
        if (owner := _stranger(path)) is not None:
            why = f"user {owner} owns it, and not you, root or the owner of the directory it is in"
            return PassedOver(path, why)
        try:
            return _claim(path, world_size)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # NFS says so for a name that was replaced under our feet, S3 for an object; the
            # next look at that name finds its successor.
            return _claim(path.fresh() if isinstance(path, Remote) else path, world_size)
    except OSError as error:
        return PassedOver(path, said(error), unreadable=True)
    except NotWhole as defect:
        return _passed(path, defect, None)


def proved(candidate: Candidate, *, deep: bool) -> Checkpoint | PassedOver:
    """Put a claim to the proof."""
    path, name, claim = candidate.path, candidate.format, candidate.claim
    try:
        try:
            defect = claim.prove(deep)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # Replaced under our feet: what it claims now is another matter, too.
            again = claim_of(path.fresh() if isinstance(path, Remote) else path, claim.world_size)
            if isinstance(again, PassedOver):
                return again
            claim = again.claim
            defect = claim.prove(deep)
    except OSError as error:
        return PassedOver(path, said(error), unreadable=True, format=name)
    except NotWhole as raised:
        return _passed(path, raised, name)
    if defect is not None:
        return PassedOver(path, defect, format=name)
    return Checkpoint(path, claim.step, claim.world_size, name, deep and claim.digests)


def said(error: OSError) -> str:
    """An error of the storage, for a person."""
    what = error.strerror or error
    if error.errno == errno.ESTALE:
        what = f"{what}: replaced or removed by another node; not whole as far as can be seen"
    if isinstance(error.filename, str | os.PathLike):
        return f"cannot be read: {what} ({os.path.basename(error.filename)})"
    return f"cannot be read: {what}"


def _iterations(layout: Layout) -> list[Candidate]:
    return [Candidate(layout.path, nvrx.FORMAT, each) for each in nvrx.claims(layout)]


def _stranger(path: Place) -> int | None:
    """The uid of an owner that has no business here: to load a checkpoint is to run its pickles,
    and in a directory where several may write any of them may claim the newest step."""
    if isinstance(path, Remote):
        return None
    with contextlib.suppress(FileNotFoundError):
        owner = path.stat().st_uid
        if owner not in (0, os.geteuid()) and owner != path.parent.stat().st_uid:
            return owner
    return None


def _claim(path: Place, world_size: int | None) -> Candidate | PassedOver:
    layout = look(path, world_size)
    for each in FORMATS:
        try:
            claimed = each.claim(layout)
        except NotWhole as defect:
            return _passed(path, defect, each.name)
        if isinstance(claimed, Defect):
            return PassedOver(path, claimed, format=each.name)
        if claimed is not None:
            return Candidate(layout.path, each.name, claimed)
    names = {name for name in layout.names or () if not name.startswith(".")}
    if layout.names is None:
        return _unknown(path, 1)
    if isinstance(layout.path, Remote):
        directories = sum(layout.path.find(name) is None for name in names)
    else:
        directories = 0
        with contextlib.suppress(OSError), os.scandir(layout.path) as entries:
            directories = sum(each.name in names and _is_directory(each) for each in entries)
    found = _unknown(path, len(names) - directories, directories)
    return replace(found, holds="") if _OTHERS.fullmatch(path.name) else found


def _unknown(path: Place, files: int, directories: int = 0) -> PassedOver:
    """What tells no format anything: still being written, the program's own, or others'."""
    count, one, many = (directories, "directory", "directories")
    if files or not directories:
        count, one, many = (files, "file", "files")
    holds = f"{count} {one if count == 1 else many}" if count else ""
    why = f"{holds}, no known format" if holds else "empty"
    return PassedOver(path, why, claimed=False, holds=holds)


def _passed(path: Place, defect: NotWhole, name: str | None) -> PassedOver:
    return PassedOver(
        path,
        str(defect),
        unreadable=isinstance(defect, CannotTell),
        claimed=not isinstance(defect, Unfinished),
        format=name,
    )


def _newness(candidate: Candidate) -> tuple[int, str]:
    step = candidate.claim.step
    return (-1 if step is None else step), candidate.path.name


def _children(place: Place) -> tuple[list[tuple[Place, bool]], int]:
    """Sub-directories, and files that torch.save or Lightning may have written (true); and how
    many other files may be one."""
    found: list[tuple[Place, bool]] = []
    loose = 0
    if isinstance(place, Remote):
        children = place.children()
        if len(children) > MAX_ENTRIES:
            raise OSError(f"{place} has more than {MAX_ENTRIES} entries")
        for child in children:
            if child.snapshot is None or child.name.endswith(torch_file.SUFFIXES):
                found.append((child, child.snapshot is not None))
            else:
                loose += not _OTHERS.fullmatch(child.name)
        return sorted(found, key=lambda pair: str(pair[0])), loose
    with os.scandir(place) as entries:
        for count, entry in enumerate(entries, start=1):
            if count > MAX_ENTRIES:
                raise OSError(f"{place} has more than {MAX_ENTRIES} entries")
            if _is_directory(entry):
                found.append((place / entry.name, False))
            elif entry.name.endswith(torch_file.SUFFIXES):
                found.append((place / entry.name, True))
            else:
                loose += not _OTHERS.fullmatch(entry.name)
    return sorted(found, key=lambda pair: str(pair[0])), loose


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True  # the storage does not say: the candidate itself will tell why
