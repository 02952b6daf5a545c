"""When a worker that died gets a successor: by a clock of our own."""

from supervisor.workers.restarts import WAIT_S, RestartPolicy


def test_a_first_death_is_replaced_at_once() -> None:
    assert RestartPolicy().died(0.0, 1.0, served=True) == 0.0
    assert RestartPolicy().died(0.0, 1.0, served=False) == 0.0


def test_a_second_early_death_waits_and_a_third_gives_up() -> None:
    policy = RestartPolicy()
    assert policy.died(0.0, 1.0, served=True) == 0.0
    assert policy.died(1.0, 2.0, served=True) == WAIT_S
    assert policy.died(4.0, 5.0, served=True) is None


def test_a_long_life_is_no_early_death() -> None:
    policy = RestartPolicy()
    now = 0.0
    for _ in range(20):
        assert policy.died(now, now + 11.0, served=True) == 0.0
        now += 11.0


def test_early_deaths_more_than_a_minute_apart_are_forgotten() -> None:
    policy = RestartPolicy()
    for start in (0.0, 70.0, 140.0, 210.0):
        assert policy.died(start, start + 1.0, served=True) == 0.0


def test_loads_that_take_long_to_fail_do_not_go_on_for_ever() -> None:
    """Three failures of 50 s each never fall into one minute, but each follows the other."""
    policy = RestartPolicy()
    assert policy.died(0.0, 50.0, served=False) == 0.0
    assert policy.died(50.0, 100.0, served=False) == WAIT_S
    assert policy.died(102.0, 152.0, served=False) is None


def test_another_try_starts_anew() -> None:
    policy = RestartPolicy()
    policy.died(0.0, 1.0, served=False)
    policy.died(1.0, 2.0, served=False)
    policy.forget()
    assert policy.died(3.0, 4.0, served=False) == 0.0
