"""A platform engineer's days: `hpctl cluster` as a program, on a sandbox that begins empty."""
