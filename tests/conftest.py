"""What all tests share: `make test` draws the same cases every time, `make test-long` others each time."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    if "long" not in (config.option.markexpr or "").replace("not long", ""):
        settings.load_profile("steady")
