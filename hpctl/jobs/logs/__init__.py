"""Log rules: what a job's own log says of hangs, numbers gone wrong and failed uploads.

`rules` reads the rules (YAML, and the presets in `presets/`), `patterns` runs their regular
expressions in linear time, and `engine` turns lines and times into verdicts. `command` is
`hpctl policy test-logs`. Lines and times go in, verdicts come out; nothing here acts on a job.
"""
