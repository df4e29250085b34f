"""Every error a user can meet: one base class and its named children."""

from collections.abc import Sequence

NO_MEMORY = ("can't allocate memory", "out of memory", "Out of Memory")  # as torch on a CPU, CUDA and DuckDB say it


class BridgeMemError(Exception):
    """Base of all errors raised on purpose; the message is one sentence that names the remedy.

    `code` is the kind of error for programs; `suggestions` are names that may have been meant.

    Example:
        >>> try:
        ...     model.forecast("Nobody", "consult")
        ... except bm.BridgeMemError as problem:
        ...     print(problem.code)
        not_found
    """

    code = "failed"
    suggestions: Sequence[str] = ()


class DataError(BridgeMemError):
    """An input file or table cannot be read as events."""

    code = "bad_data"


class LimitError(DataError):
    """An input file would unpack to more than the limit for its size."""

    code = "too_large"


class SettingsError(BridgeMemError):
    """A setting has a value that cannot be used."""

    code = "bad_setting"


class NotFoundError(BridgeMemError):
    """A data set, run, entity or relation that was named does not exist."""

    code = "not_found"


class SelectionError(BridgeMemError):
    """The order of selection and test evaluation would be broken."""

    code = "out_of_order"


class RunError(BridgeMemError):
    """A run folder is missing, incomplete, or of another format version."""

    code = "bad_run"


class BackboneError(BridgeMemError):
    """A backbone breaks its contract: wrong shape, not finite, or not causal."""

    code = "bad_backbone"
