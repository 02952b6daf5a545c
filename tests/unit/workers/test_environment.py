"""What workers see of the environment."""

from supervisor.workers.environment import MARKER, worker_environment


def test_what_a_worker_needs_is_passed_on() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C",
        "MLX_DISABLE_COMPILE": "1",
        "OMP_NUM_THREADS": "2",
    }
    seen = worker_environment(environ, "word")
    assert environ.items() <= seen.items()
    assert seen[MARKER] == "word"


def test_secrets_and_strangers_are_not() -> None:
    environ = {
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "MLX_SUPERVISOR_SERVER_KEY": "x",
        "MLX_PRIVATE_TOKEN": "x",
        "CUDA_LICENSE_KEY": "x",
        "SSH_AUTH_SOCK": "x",
        "http_proxy": "x",
    }
    assert not environ.keys() & worker_environment(environ, "word").keys()


def test_workers_never_look_on_the_network() -> None:
    seen = worker_environment({"HF_HUB_OFFLINE": "0"}, "word")
    assert seen["HF_HUB_OFFLINE"] == "1" and seen["TRANSFORMERS_OFFLINE"] == "1"
