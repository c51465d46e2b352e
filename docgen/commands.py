"""docs/cli.md: every command and option, from the commands themselves."""

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import click

from hpctl.cli.main import cli

HEAD = """# Commands

Without `hpctl`. `hpctl COMMAND --help` prints examples too. Read commands work while the daemon is
down. Requests (`pause`, `approve` and so on) go to the daemon, which acts under its own gates.

- **Exit codes**: 0 fine; 1 problem found, refused or failed; 2 usage; 3 cannot tell, or in doubt;
  130 interrupted by Ctrl-C (work that was ordered goes on).
- **Durations**: `90s`, `30min`, `3h`, `1d`; a bare number is seconds. Times are UTC.
- **Output**: text on a terminal, at most 200 columns elsewhere unless `COLUMNS` says otherwise. A
  `--dry-run` ends with `Dry run: nothing was done.`
- **Options of nearly every command**: `--json`; `--config` where the daemon's configuration is
  read; `--profile`, `--region` and `--endpoint-url` where AWS is asked.
- **Completion**: `eval "$(hpctl completion bash)"`; also zsh and fish.

| option of several commands | meaning |
|---|---|
"""
_SHARED_BY = 2
"""An option that so many commands have is described once."""
_IN_HEAD = ("| `--json`", "| `--config ", "| `--profile ", "| `--region ")
_IN_HELP = ("hpctl sandbox ", "hpctl agent ")
"""What few people call by hand: its options are named, and `--help` describes them."""
_EVERYWHERE = ("as_json", "config", "profile", "region", "endpoint_url")


def page() -> str:
    """The page. Raises ValueError for a command or an option without a help."""
    commands = list(_walk("hpctl", cli))
    uses: dict[str, Counter[str]] = defaultdict(Counter)
    for _, command in commands:
        for option in _options(command):
            uses[_flags(option)][_text(option.help)] += 1
    shared = {
        flags: helps.most_common(1)[0][0]
        for flags, helps in uses.items()
        if helps.total() >= _SHARED_BY
    }
    listed = [f"| `{flags}` | {text} |" for flags, text in sorted(shared.items())]
    lines = [HEAD.rstrip("\n"), *(row for row in listed if not row.startswith(_IN_HEAD))]
    group = ""
    for words, command in commands:
        if words.split()[1] != group:
            group = words.split()[1]
            lines += ["", f"## {group}"]
        lines += _command(words, command, shared)
    return "\n".join(lines) + "\n"


def _walk(text: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        if command.invoke_without_command and text != "hpctl":
            yield text, command
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _walk(f"{text} {name}", child)
    else:
        yield text, command


def _command(text: str, command: click.Command, shared: Mapping[str, str]) -> Iterator[str]:
    if not command.help:
        raise ValueError(f"{text} has no help")
    context = click.Context(command, info_name=text)
    arguments = [a for p in command.params for a in _argument(p, context)]
    usage = " ".join([text.removeprefix("hpctl "), *arguments])
    yield from ("", f"**`{usage}`**", "") if " " in usage else ("",)
    about = _text(inspect.cleandoc(command.help).split("\n\n")[0].partition("\f")[0])
    known = [o for o in _options(command) if _is_shared(o, shared) or text.startswith(_IN_HELP)]
    also = [_name(o) for o in known if o.name not in _EVERYWHERE]
    yield about + (" Takes " + ", ".join(f"`{name}`" for name in also) + "." if also else "")
    own = [o for o in _options(command) if o not in known]
    if own:
        yield ""
        yield from (f"- `{_flags(o)}`: {_text(o.help)}" for o in own)


def _is_shared(option: click.Option, shared: Mapping[str, str]) -> bool:
    return option.name in ("as_json", "dry_run") or shared.get(_flags(option)) == _text(option.help)


def _argument(parameter: click.Parameter, context: click.Context) -> list[str]:
    if not isinstance(parameter, click.Argument):
        return []
    return parameter.get_usage_pieces(context) or [parameter.make_metavar(context)]


def _options(command: click.Command) -> list[click.Option]:
    found = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
    for option in found:
        if not option.help:
            raise ValueError(f"{command.name} {option.opts[-1]} has no help")
    return found


def _name(option: click.Option) -> str:
    return "/".join([option.opts[-1], *option.secondary_opts])


def _flags(option: click.Option) -> str:
    """`--every TIME`, `--wait/--no-wait`, `-o, --output FILE`."""
    names = ", ".join(option.opts) + "".join(f"/{o}" for o in option.secondary_opts)
    if option.is_flag or option.count:
        return names
    metavar = option.make_metavar(click.Context(click.Command("")))
    return f"{names} {metavar.removesuffix(' RANGE')}"


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").replace("\b", "")).strip().replace("|", "\\|")
