"""The models of a state folder, looked at by a verb itself while no supervisor runs."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import chosen_home

if TYPE_CHECKING:
    from supervisor.catalog.catalog import Catalog
    from supervisor.catalog.costs import Costs
    from supervisor.catalog.machine import Machine
    from supervisor.home import Home
    from supervisor.settings import Settings


class Looked(NamedTuple):
    """What is there. Nothing of it is changed or locked."""

    home: "Home"
    settings: "Settings"
    catalog: "Catalog"


@contextlib.contextmanager
def looked_at(option: Path | None, missing: NotRunningError) -> Iterator[Looked]:
    """The state folder that the `--home` option means, and its models; `missing` where there is none.

    Raises RefusedError, also for a PublicError of the block.
    """
    from shared.errors import PublicError
    from supervisor.catalog.catalog import Catalog
    from supervisor.home import Home, HomeError, NoHomeError
    from supervisor.settings import SettingsError, load_settings

    try:
        home = Home.find(chosen_home(option))
        settings = load_settings(home.config, environ=os.environ)
        yield Looked(home, settings, Catalog(home, settings))
    except NoHomeError:
        raise missing from None
    except (HomeError, SettingsError) as error:
        raise RefusedError(str(error)) from None
    except PublicError as error:
        raise RefusedError(error.message) from None


async def recalled(home: "Home", machine: "Machine") -> "Costs":
    """What models cost, with the footprints that were seen. Raises RefusedError."""
    from supervisor.catalog.costs import Costs
    from supervisor.database import Database, DatabaseError

    if not home.state_db.exists():
        return Costs(machine)
    database = Database(home.state_db)
    costs = Costs(machine, database)
    try:
        await costs.load()
    except DatabaseError as error:
        raise RefusedError(str(error)) from None
    finally:
        await database.close()
    return costs
