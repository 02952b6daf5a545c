"""The command line.

Verbs are typed often and mostly wait for nothing, so each imports only what it needs, when it runs.
"""

import sys

from shared import __version__


def main() -> None:
    """What the console script calls. Exits with 0 (fine), 1 (refused) or 2 (wrong usage)."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"mlx-supervisor {__version__}\n")
        return
    from supervisor.cli.app import run

    sys.exit(run())
