"""What a query and a plan are: frozen values, checked when built, with no I/O and no data."""
