"""Apple's chips for Macs: what a worker's speed and room depend on, by chip and memory size.

`brand` is what `sysctl machdep.cpu.brand_string` says. Bandwidths are Apple's own published numbers, in
GB/s as Apple counts them (10^9). Where a chip comes with two memory interfaces, the memory size tells which
one it is, because Apple sells each size with one of them only.

Sources, by announcement: M1 Pro and Max (18 Oct 2021: 200, 400), M1 Ultra (8 Mar 2022: 800), M2 (6 Jun
2022: 100, "50 percent more than M1", which makes 68 for its LPDDR4X-4266), M2 Pro and Max (17 Jan 2023:
200, 400), M2 Ultra (5 Jun 2023: 800), M3, Pro and Max (30 Oct 2023 and the MacBook Pro's technical
specifications: 100, 150, 300 with 30 GPU cores, 400 with 40), M4, Pro and Max (30 Oct 2024 and
specifications: 120, 273, 410 with 32 GPU cores, 546 with 40), M3 Ultra (5 Mar 2025: 819), M5 (15 Oct 2025:
153), M5 Pro and Max (3 Mar 2026 and specifications: 307, 460 with 32 GPU cores, 614 with 40). An M5 Ultra
was not announced when this was written.

Compute is what prefill reaches, in FLOP/s. Apple published the GPU's peak for M1 (10 Nov 2020: 2.6 TFLOPS),
M1 Pro and M1 Max (5.2, 10.4); prefill is taken to reach 60 % of it. For the M4 Max with 40 GPU cores it is
measured: 1,622 tokens/s of prompt through the 3.63e9 matrix parameters of Qwen3-4B in 4 bits, in mlx-lm's
BENCHMARKS.md. Of the others Apple names no number, so there is none here.
"""

from typing import Final

import msgspec

GIB: Final = 2**30
_GB_S: Final = 1e9
_TFLOPS: Final = 1e12
_SHARE_OF_PEAK: Final = 0.6


class Chip(msgspec.Struct, frozen=True):
    """One chip with the memory sizes that share a memory interface."""

    brand: str
    memory_gib: tuple[int, ...]
    bandwidth_bytes_s: float
    prefill_flops: float | None = None


def _chip(brand: str, memory_gib: tuple[int, ...], gb_s: float, prefill_flops: float | None = None) -> Chip:
    return Chip(f"Apple {brand}", memory_gib, gb_s * _GB_S, prefill_flops)


CHIPS: Final = (
    _chip("M1", (8, 16), 68, 2.6 * _TFLOPS * _SHARE_OF_PEAK),
    _chip("M1 Pro", (16, 32), 200, 5.2 * _TFLOPS * _SHARE_OF_PEAK),
    _chip("M1 Max", (32, 64), 400, 10.4 * _TFLOPS * _SHARE_OF_PEAK),
    _chip("M1 Ultra", (64, 128), 800),
    _chip("M2", (8, 16, 24), 100),
    _chip("M2 Pro", (16, 32), 200),
    _chip("M2 Max", (32, 64, 96), 400),
    _chip("M2 Ultra", (64, 128, 192), 800),
    _chip("M3", (8, 16, 24), 100),
    _chip("M3 Pro", (18, 36), 150),
    _chip("M3 Max", (36, 96), 300),
    _chip("M3 Max", (48, 64, 128), 400),
    _chip("M3 Ultra", (96, 256, 512), 819),
    _chip("M4", (16, 24, 32), 120),
    _chip("M4 Pro", (24, 48, 64), 273),
    _chip("M4 Max", (36,), 410),
    _chip("M4 Max", (48, 64, 128), 546, 2 * 3.63e9 * 1622),
    _chip("M5", (16, 24, 32), 153),
    _chip("M5 Pro", (24, 48, 64), 307),
    _chip("M5 Max", (36,), 460),
    _chip("M5 Max", (48, 64, 128), 614),
)


def find_chip(brand: str, memory_bytes: int) -> Chip | None:
    """The chip of that name with that much memory.

    A size that Apple did not sell gets the chip's slowest interface; an unknown chip gets None.
    """
    candidates = [chip for chip in CHIPS if chip.brand == brand.strip()]
    size = round(memory_bytes / GIB)
    fitting = [chip for chip in candidates if size in chip.memory_gib]
    return min(fitting or candidates, key=lambda chip: chip.bandwidth_bytes_s, default=None)


def gpu_bytes_of(memory_bytes: int) -> int:
    """What macOS lets the GPU hold of so much memory, if nothing else is known; rounded to the safe side.

    Seen in `recommendedMaxWorkingSetSize`: two thirds up to 32 GiB (10,922 MiB of 16 GiB, 21,845 of 32),
    three quarters above (73,728 MiB of 96 GiB). Newer systems give more (107.5 GiB of 128): a worker knows.
    """
    if memory_bytes <= 32 * GIB:
        return memory_bytes * 2 // 3
    return memory_bytes * 3 // 4
