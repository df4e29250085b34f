"""Every error a user can meet: one base class and its named children."""

NO_MEMORY = ("can't allocate memory", "out of memory", "Out of Memory")  # as torch on a CPU, CUDA and DuckDB say it


class BridgeMemError(Exception):
    """Base of all errors raised on purpose; the message is one sentence that names the remedy."""


class DataError(BridgeMemError):
    """An input file or table cannot be read as events."""


class LimitError(DataError):
    """An input file would unpack to more than the limit for its size."""


class SettingsError(BridgeMemError):
    """A setting has a value that cannot be used."""


class NotFoundError(BridgeMemError):
    """A data set, run, entity or relation that was named does not exist."""


class SelectionError(BridgeMemError):
    """The order of selection and test evaluation would be broken."""


class RunError(BridgeMemError):
    """A run folder is missing, incomplete, or of another format version."""


class BackboneError(BridgeMemError):
    """A backbone breaks its contract: wrong shape, not finite, or not causal."""
