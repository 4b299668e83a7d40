"""Steersman: coding agents as durable Temporal workflows."""


def __getattr__(name: str) -> str:
    # On demand: importlib.metadata would take a good part of the command line's start.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - on demand

    try:
        return version("steersman")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0.0.0"
