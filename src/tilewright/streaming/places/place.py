"""What a place is: where blocks are multiplied, with slots of its own."""

from __future__ import annotations

from typing import Any, Protocol

from ..plan.schedule import Load, Multiply, Store

#: What a place gives back for a piece of work: anything by which it knows when that is done. It is only handed around here.
Token = Any


class Place(Protocol):
    """Where blocks are multiplied: it has the slots, and moves blocks between them and where the matrices lie.

    Each method may return before its work is done, as long as the place itself waits for the tokens it is given. Loads,
    multiplications and stores are asked for by a thread each; a store is done when it returns.
    """

    def load(self, load: Load, after: Token) -> Token:
        """Bring a block of an operand to a slot, when what used the slot before is done."""

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Multiply two loaded blocks into a tile of C."""

    def store(self, store: Store, after: Token) -> Token:
        """Copy a finished tile of C to the result."""

    def close(self) -> None:
        """Wait for what is under way, and give everything back."""
