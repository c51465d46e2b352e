"""A length of time in words."""


def format_duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`: two units at most."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for size, unit, small_size, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
