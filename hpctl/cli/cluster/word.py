"""Options whose values are words of cluster.yaml: refused where they are typed."""

from __future__ import annotations

from typing import Any, get_args

import click


class WordType(click.ParamType):  # type: ignore[type-arg]
    """A value that one of the annotated types of `hpctl.clusters.spec.words` takes.

    `word` is that type's name: the module is imported only when a value is there.
    """

    def __init__(self, word: str, name: str) -> None:
        self.word = word
        self.name = name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The value. Fails with exit code 2, an example, and on a terminal with the question."""
        from hpctl.clusters.spec import words

        annotated: Any = getattr(words, self.word)
        like = next(part for part in get_args(annotated) if isinstance(part, words.Like))
        text = str(value).strip()
        try:
            return like.checked(text)
        except ValueError as error:
            self.fail(f"{text!r} {error}", param, ctx)


class LustreType(click.ParamType):  # type: ignore[type-arg]
    """An FSx for Lustre file system: `DNS-NAME/MOUNT-NAME`."""

    name = "dns-name/mount-name"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """DNS name and mount name."""
        if isinstance(value, tuple):
            return value
        dns_name, slash, mount_name = str(value).partition("/")
        if not slash:
            self.fail(f"{value!r} has no mount name: write DNS-NAME/MOUNT-NAME", param, ctx)
        return (
            WordType("FsxDnsName", self.name).convert(dns_name, param, ctx),
            WordType("MountName", self.name).convert(mount_name, param, ctx),
        )
