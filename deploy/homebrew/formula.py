"""Makes the Homebrew formula of one release.

    python deploy/homebrew/formula.py HOMEPAGE URL SDIST > Formula/mlx-supervisor.rb

HOMEPAGE is the project's page, URL is where SDIST, the release's source archive, can be fetched.
"""

import hashlib
import sys
from pathlib import Path

TEMPLATE = Path(__file__).with_name("mlx-supervisor.rb.in")


def formula(homepage: str, url: str, archive: Path) -> str:
    """The formula's text. Raises OSError when the archive or the template can't be read."""
    values = {
        "@HOMEPAGE@": homepage,
        "@URL@": url,
        "@SHA256@": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    text = TEMPLATE.read_text()
    for name, value in values.items():
        text = text.replace(name, value)
    return text


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.stdout.write(formula(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
