"""What a stream's config may say about the local broker. The README's table of options is made from this schema."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

IN_MEMORY = ":memory:"


class LocalConfig(BaseModel):
    """Options of a stream with `connector: local`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        min_length=1,
        description="The SQLite file, made when it is not there; its directory must exist, on a local disk. "
        "`:memory:` lives as long as the process, and is shared by all streams in it.",
    )
    queue: str = Field(
        default="default", min_length=1, description="The queue in that file. Streams on one queue share its messages."
    )
    batch_size: int = Field(default=500, ge=1, le=10_000, description="Messages taken at once, at most.")
    poll_interval: float = Field(
        default=0.05,
        gt=0,
        le=60,
        description="Seconds between looks for what other processes published; what this one publishes is seen at once.",
    )
    visibility_timeout: float = Field(
        default=10.0,
        ge=0.1,
        le=43_200,
        description="Seconds until the messages of a consumer that died are handed out again. A living one extends it.",
    )
    backoff: float = Field(
        default=1.0,
        gt=0,
        description="Seconds until a failed message comes again; doubled at each further failure, less up to a quarter.",
    )
    max_backoff: float = Field(default=300.0, gt=0, description="The longest such wait, in seconds.")

    @model_validator(mode="after")
    def _backoff_grows(self) -> LocalConfig:
        if self.max_backoff < self.backoff:
            raise ValueError(f"max_backoff ({self.max_backoff:g}) must not be less than backoff ({self.backoff:g})")
        return self
