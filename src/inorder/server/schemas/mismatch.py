"""Why a message is not what its schema says, and where."""


class Mismatch(Exception):
    """The reason, and the way to it from the outside in. Caught by whoever asked for the check."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._way: list[str] = []

    def within(self, step: str) -> "Mismatch":
        """The same, seen from one level further out."""
        self._way.append(step)
        return self

    def __str__(self) -> str:
        told = f"{'.'.join(reversed(self._way))}: {self.reason}" if self._way else self.reason
        return told.encode(errors="replace").decode()  # JSON may name half a character, which no answer can
