"""The figures that the README states, each beside a named rival measured in the same run."""
