"""The limit on open descriptors: launchd's default of 256 is too low for a server."""

import resource

WANTED = 65_536
# macOS refuses more than OPEN_MAX even where the hard limit reads "unlimited".
MACOS_MAX = 10_240


def raise_limit() -> int:
    """Raise the soft limit as far as it goes, up to `WANTED`; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (WANTED, MACOS_MAX):
        target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft >= target:
            return soft
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (ValueError, OSError):
            continue
        return target
    return soft
