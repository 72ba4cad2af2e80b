"""Closed unions of values: each kind has a name, and is read by its schema and no other."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any, Generic, TypeVar

from molink.errors import FrameError
from molink.wire.schema import Rules, Schema

T = TypeVar("T")


class Kinds(Generic[T]):
    """Closed union of dataclasses, each with the name that tells it apart."""

    def __init__(self, kinds: Mapping[str, type[T]], rules: Rules) -> None:
        self._schemas = {name: Schema(kind, rules) for name, kind in kinds.items()}
        self._names = {kind: name for name, kind in kinds.items()}

    def write(self, value: T) -> tuple[str, Any]:
        """The kind's name, and the plain fields."""
        name = self._names[type(value)]
        return name, self._schemas[name].write(value)

    def read(self, name: Any, plain: Any) -> T:
        """The value of a kind. Raises FrameError for an unknown kind or a wrong field."""
        if type(name) is not str or name not in self._schemas:
            raise FrameError(f"unknown kind {shortened(name)}")
        return self._schemas[name].read(plain)
