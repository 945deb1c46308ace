"""The shop that lookups ask, a new one for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.postgres import Server
from tests.support.shop import Shop, opened


@pytest.fixture
def shop(postgres: Server) -> Iterator[Shop]:
    with opened(postgres) as found:
        yield found
