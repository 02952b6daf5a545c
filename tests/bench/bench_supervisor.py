"""The supervisor over engines that answer at once: takes what `mlx-supervisor start` takes."""

import functools

from supervisor import cli, server
from tests.bench.fake_engine import COMMAND

if __name__ == "__main__":
    server.run = functools.partial(server.run, worker_command=COMMAND)
    cli.main()
