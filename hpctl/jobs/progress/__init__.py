"""What the ranks say of their progress, and what their silence means.

`listen` gives them a socket or reads a file, `notes` parses a line, `RunProgress` keeps
what was reported and judges it against its own past (`pace`). The ranks' side is `hpctl.progress`.
"""
