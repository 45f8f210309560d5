"""What a place is: where blocks are multiplied, with slots of its own."""

from __future__ import annotations

from typing import Any, Protocol

from ..plan.schedule import Load, Multiply, Store

#: What a place returns for a piece of work, and by which it later knows whether that is done. All others only pass it on.
Token = Any


class Place(Protocol):
    """Where blocks are multiplied: it has the slots, and copies blocks between them and the matrices.

    ``load`` and ``multiply`` may return before their work is done: the place itself waits for the tokens that it is given. A
    store is done when ``store`` returns. Each of the three is called by a thread of its own.
    """

    def load(self, load: Load, after: Token) -> Token:
        """Load a block of an operand into a slot, after the work ``after`` that used the slot last."""

    def multiply(self, step: Multiply, needs: tuple[Token, Token], after: Token) -> Token:
        """Multiply two loaded blocks into a tile of C."""

    def store(self, store: Store, after: Token) -> Token:
        """Copy a finished tile of C to the result."""

    def close(self) -> None:
        """Wait for the work under way, and release all memory."""
