"""Document, the shape that every document shares, and the lines of standard error."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridgemem.service.models import Answer


class Document(Answer):
    """What every document begins with."""

    command: str = Field(description="The command that printed it.")
    version: str = Field(description="Version of the program.")


class Failure(Answer):
    """A line of standard error: why the command failed, in one sentence. The exit code is 1 or 2."""

    error: str
    code: str = Field(description="What kind of failure it is; see the list of codes.")
    suggestions: list[str] = Field(description="Names that may have been meant.")


class Remark(Answer):
    """A line of standard error: a remark next to the result."""

    warning: str


Line = Annotated[Failure | Remark, Field(description="A line of standard error.")]
