"""Machines as their systems describe them, told by probes."""

import sys
from collections.abc import Callable

import pytest

from supervisor.catalog.chips import CHIPS, GIB, find_chip, gpu_bytes_of
from supervisor.catalog.machine import Machine, NvidiaCard, Probe, detect, lineup, parse_nvidia
from supervisor.system.sysctl import sysctl_bytes, sysctl_text, sysctl_whole


def mac(brand: str, memory_gib: int, *, wired_limit_mib: int | None = 0) -> Probe:
    wholes = {"hw.memsize": memory_gib * GIB, "iogpu.wired_limit_mb": wired_limit_mib}
    return Probe(
        platform="darwin",
        architecture="arm64",
        text=lambda name: brand if name == "machdep.cpu.brand_string" else None,
        whole=wholes.get,
        memory_bytes=lambda: memory_gib * GIB,
        available_bytes=lambda: memory_gib * GIB // 2,
    )


def linux(
    *,
    packages: tuple[str, ...] = (),
    card: NvidiaCard | None = None,
    bandwidth: Callable[[], float | None] = lambda: None,
) -> Probe:
    return Probe(
        platform="linux",
        architecture="x86_64",
        memory_bytes=lambda: 64 * GIB,
        available_bytes=lambda: 50 * GIB,
        processor=lambda: "Some CPU",
        nvidia=lambda: card,
        has_package=packages.__contains__,
        bandwidth=bandwidth,
    )


@pytest.mark.parametrize(
    ("brand", "memory_gib", "gb_s"),
    [
        ("Apple M1", 16, 68),
        ("Apple M2 Ultra", 192, 800),
        ("Apple M3 Max", 36, 300),
        ("Apple M3 Max", 96, 300),
        ("Apple M3 Max", 128, 400),
        ("Apple M4 Max", 36, 410),
        ("Apple M4 Max", 64, 546),
        ("Apple M5 Pro", 48, 307),
        ("Apple M5 Max", 36, 460),
        ("Apple M5 Max", 128, 614),
    ],
)
def test_a_mac_is_known_by_chip_and_memory(brand: str, memory_gib: int, gb_s: float) -> None:
    machine = detect(mac(brand, memory_gib))
    assert (machine.name, machine.backend) == (brand, "metal")
    assert machine.memory_bytes == memory_gib * GIB
    assert machine.bandwidth_bytes_s == gb_s * 1e9


def test_an_unsold_memory_size_gets_the_slower_interface() -> None:
    chip = find_chip("Apple M4 Max", 40 * GIB)
    assert chip is not None and chip.bandwidth_bytes_s == 410e9


def test_an_unknown_chip_has_no_speed() -> None:
    machine = detect(mac("Apple M9 Ultra", 1024))
    assert machine.bandwidth_bytes_s is None and machine.prefill_flops is None
    assert machine.gpu_bytes == 768 * GIB


@pytest.mark.parametrize(("memory_gib", "mib"), [(16, 10_922), (24, 16_384), (32, 21_845), (96, 73_728)])
def test_the_gpus_share_is_what_metal_was_seen_to_recommend(memory_gib: int, mib: int) -> None:
    assert gpu_bytes_of(memory_gib * GIB) // 2**20 == mib


def test_the_gpus_share_is_told_by_the_best_who_knows() -> None:
    by_rule = detect(mac("Apple M4 Max", 128))
    assert (by_rule.gpu_bytes, by_rule.gpu_source) == (96 * GIB, "rule")
    by_setting = detect(mac("Apple M4 Max", 128, wired_limit_mib=114_688))
    assert (by_setting.gpu_bytes, by_setting.gpu_source) == (112 * GIB, "setting")
    by_worker = detect(mac("Apple M4 Max", 128, wired_limit_mib=114_688), working_set_bytes=7 * GIB)
    assert (by_worker.gpu_bytes, by_worker.gpu_source) == (7 * GIB, "worker")
    assert by_worker.budget_bytes == 7 * GIB


def test_a_setting_beyond_the_memory_is_not_believed() -> None:
    assert detect(mac("Apple M1", 16, wired_limit_mib=10**6)).gpu_bytes == 16 * GIB


def test_a_mac_without_the_sysctls_is_still_a_mac() -> None:
    probe = Probe(
        platform="darwin",
        architecture="arm64",
        text=lambda _: None,
        whole=lambda _: None,
        memory_bytes=lambda: 16 * GIB,
        available_bytes=lambda: 8 * GIB,
    )
    machine = detect(probe)
    assert (
        machine.backend == "metal" and machine.memory_bytes == 16 * GIB and machine.bandwidth_bytes_s is None
    )


def test_an_intel_mac_computes_on_its_cpu() -> None:
    probe = Probe(
        platform="darwin", architecture="x86_64", processor=lambda: None, has_package=lambda _: False
    )
    assert detect(probe).backend == "cpu"


def test_linux_without_a_gpu_takes_three_quarters_of_its_memory() -> None:
    machine = detect(linux())
    assert machine == Machine("Some CPU", "cpu", 64 * GIB, available_bytes=50 * GIB)
    assert machine.budget_bytes == 48 * GIB


def test_bandwidth_may_be_measured() -> None:
    assert detect(linux(bandwidth=lambda: 12e9)).bandwidth_bytes_s == 12e9


def test_cuda_takes_both_a_card_and_mlx_for_it() -> None:
    card = NvidiaCard("Some GPU", 24 * GIB)
    assert detect(linux(card=card)).backend == "cpu"
    assert detect(linux(packages=("mlx-cuda-12",))).backend == "cpu"
    machine = detect(linux(packages=("mlx-cuda-12",), card=card))
    assert (machine.name, machine.backend, machine.gpu_source) == ("Some GPU", "cuda", "driver")
    assert machine.budget_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("answer", "card"),
    [
        ("NVIDIA GeForce RTX 4090, 24564\nother, 1\n", NvidiaCard("NVIDIA GeForce RTX 4090", 24_564 * 2**20)),
        ("a, b, 10\n", NvidiaCard("a, b", 10 * 2**20)),
        ("", None),
        ("No devices were found\n", None),
        ("GPU, [N/A]\n", None),
    ],
)
def test_what_the_driver_answers(answer: str, card: NvidiaCard | None) -> None:
    assert parse_nvidia(answer) == card


def test_this_machine_can_be_described() -> None:
    machine = detect()
    assert machine.name and machine.budget_bytes > 0
    assert machine.available_bytes is not None and machine.available_bytes <= machine.memory_bytes


def test_the_lineup_has_every_chip_and_size_once() -> None:
    machines = lineup()
    assert len(machines) == sum(len(chip.memory_gib) for chip in CHIPS)
    assert len({(machine.name, machine.memory_bytes) for machine in machines}) == len(machines)
    assert all(machine.bandwidth_bytes_s and machine.gpu_bytes for machine in machines)


@pytest.mark.skipif(sys.platform == "darwin", reason="it has sysctl")
def test_systems_without_sysctl_answer_nothing() -> None:
    assert sysctl_bytes("hw.memsize") is None
    assert sysctl_text("machdep.cpu.brand_string") is None
    assert sysctl_whole("hw.memsize") is None
