"""What every room uses and what says nothing about nodes, jobs or clusters.

The room promises that each small mechanism exists once. Everything from outside that is counted,
dated or shown passes through `bounds`; every file that people write is read by `yaml_files`; every
error that hpctl raises on purpose is one of `errors` and carries a hint; every command prints
through `output`.

How the parts work together in a command: `lazy_commands` imports the module of a command when it
is called, `arguments` reads names, the command builds a view (a frozen struct whose fields are the
JSON contract), and `output` prints the view as JSON or as text, made with `tables`.

Everything that is limited in rate counts with `token_bucket`, of which `rate_limiter` keeps one for
each sender.

`bounds`, `hostlist`, `durations` and `token_bucket` are pure: files that decide may import them.
`yaml_files` and `output` do I/O and may not. `compat` is the only module that asks for the version
of the interpreter.

Begin with `errors.py`, `bounds.py` and `output.py`.

The room imports no other room. A word of Slurm, SageMaker or recovery belongs to another room,
with one exception: the syntax of Slurm's hostlists, which all rooms read.
"""
