"""What the scripts say while they work."""

import os


def report(message: str) -> None:
    """Print a line, in the first of the processes of a distributed run only."""
    if os.environ.get("RANK", "0") == "0":
        print(message, flush=True)
