"""`python -m supervisor` is `mlx-supervisor`."""

from supervisor.cli import main

main()
