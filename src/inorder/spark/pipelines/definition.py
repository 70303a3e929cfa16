"""A pipeline's file as a value: every field is known, and all addresses are whole. Nothing here needs Spark."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from inorder.errors import InvalidArgument, NotFound, PipelineInvalid
from inorder.spark.durations import seconds
from inorder.spark.pipelines.checking import HAVE_SCHEMA, file_problems
from inorder.spark.pipelines.fields import as_option, choice, flat, unknown
from inorder.spark.sinks import SINKS, sink_class

DEFAULT_INTERVAL: Final = "1 second"  # a source that is asked more often costs more than it gives

_ADDRESSES: Final = ("path", "url")  # of sources and sinks
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the rows come from."""

    format: str | None = None
    table: str | None = None
    url: str | None = None
    topic: str | None = None
    path: str | None = None
    schema: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    sql: str | None = None

    @property
    def knows_its_schema(self) -> bool:
        """Whether it can be asked of the files themselves."""
        return self.schema is None and self.format in HAVE_SCHEMA

    @property
    def tick_option(self) -> str | None:
        """The tick that the file itself asks for."""
        return next((value for name, value in self.options.items() if name.lower() == "tickseconds"), None)


@dataclass(frozen=True, slots=True)
class Order:
    """What puts them in order: an operator, and its options by their names."""

    operator: str
    options: dict[str, Any]

    @property
    def gap_timeout_seconds(self) -> float | None:
        return seconds("gap_timeout", self.options.get("gap_timeout"))

    @property
    def number(self) -> str | None:
        """The column by which the operator orders."""
        named = (self.options.get(role) for role in ("sequence", "version", "time", "id"))
        return next((name for name in named if name is not None), None)


@dataclass(frozen=True, slots=True)
class Transform:
    """What is done to a batch: one of the two."""

    sql: str | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch runs."""

    available_now: bool = False
    processing_time: float | str | None = None

    @property
    def for_spark(self) -> dict[str, Any]:
        if self.available_now:
            return {"availableNow": True}
        interval = self.processing_time if self.processing_time is not None else DEFAULT_INTERVAL
        length = seconds("processing_time", interval)
        assert length is not None
        # Not the text as it stands: of minutes and hours Spark reads no parts.
        return {"processingTime": f"{round(length * 1000)} milliseconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A file that can be built: every field is known, and all addresses are whole."""

    folder: Path  # of the file
    name: str
    checkpoint: str
    source: Source
    sink_format: str
    sink: Any
    state: str | None = None
    order: Order | None = None
    transforms: tuple[Transform, ...] = ()
    trigger: Trigger = Trigger()
    spark: dict[str, str] = field(default_factory=dict)


def read_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """The pipeline in a file, or a `PipelineInvalid` with everything that is wrong with it."""
    file = Path(path)
    if file.is_dir():
        file = file / "pipeline.toml"
    if not file.is_file():
        raise NotFound(f"there is no file {file}")
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineInvalid(str(file), (f"this is not TOML: {error}",)) from None
    found = [*file_problems(given)]
    sink: Any = None
    if isinstance(given.get("sink"), dict):
        sink, wrong = _sink(given["sink"], file.absolute().parent)
        found += wrong
    if found:
        raise PipelineInvalid(str(file), tuple(found))
    return _pipeline(given, sink, file.absolute().parent)


def _pipeline(given: Mapping[str, Any], sink: Any, folder: Path) -> Pipeline:
    source = _with_addresses(given["source"], folder)
    source["options"] = {name: as_option(value) for name, value in flat(source.get("options", {})).items()}
    order = dict(given.get("order", {}))
    return Pipeline(
        folder=folder,
        name=given["name"],
        checkpoint=address(given["checkpoint"], folder),
        state=address(given["state"], folder) if "state" in given else None,
        source=Source(**source),
        order=Order(order.pop("operator"), order) if order else None,
        transforms=tuple(Transform(**one) for one in given.get("transform", ())),
        sink_format=given["sink"]["format"],
        sink=sink,
        trigger=Trigger(**given.get("trigger", {})),
        spark={name: as_option(value) for name, value in flat(given.get("spark", {})).items()},
    )


def address(given: str, folder: Path) -> str:
    """An address as anybody can use it: what has no scheme is a path, and a relative one starts at the file."""
    scheme = "file:" if given.startswith("file:") and not given.startswith("file:/") else ""
    if not scheme and _SCHEME.match(given):
        return given
    path = os.path.expanduser(given.removeprefix("file:")) if scheme else given  # there, ~ is a home everywhere
    return scheme + os.path.normpath(folder / path)


def _with_addresses(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    # Behind `file:`, a url has its options behind a question mark, and is quoted: so the folder has to be, too.
    quoted = Path(str(folder).replace("%", "%25").replace("?", "%3F"))
    return {
        name: address(value, quoted if name == "url" and value.startswith("file:") else folder)
        if name in _ADDRESSES and isinstance(value, str) and value
        else value
        for name, value in given.items()
    }


def _sink(given: Mapping[str, Any], folder: Path) -> tuple[Any, list[str]]:
    """The sink, and what is wrong with it."""
    known = choice(SINKS, required=True)
    if "format" not in given:
        return None, [f"[sink] format: it is missing; {known.allowed}"]
    if problem := known.problem(given["format"]):
        return None, [f"[sink] format: {problem}"]
    cls = sink_class(given["format"])
    names = [one.name for one in fields(cls)]
    options = {name: value for name, value in given.items() if name != "format"}
    wrong = [f"[sink] {unknown(name, names)}" for name in options if name not in names]
    wrong += [
        f"[sink] {one.name}: it is missing; format {given['format']!r} needs it"
        for one in fields(cls)
        if one.default is MISSING and one.default_factory is MISSING and one.name not in options
    ]
    if wrong:
        return None, wrong
    try:
        return cls(**_with_addresses(options, folder)), []
    except InvalidArgument as error:
        return None, [f"[sink] {error}"]
