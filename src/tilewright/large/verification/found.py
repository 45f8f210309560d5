"""What a verification found."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...errors import VerificationError

#: Verified products are reported here, at level INFO.
log = logging.getLogger("tilewright.verification")


@dataclass(frozen=True)
class Verification:
    """What was found: the largest error of an element, relative to |A||B|, and where; and the bound that was promised."""

    error: float
    bound: float
    where: tuple[int, ...] = ()
    what: str = ""

    @property
    def ok(self) -> bool:
        """Whether every error found is within the bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        at = f" at C{list(self.where)}" if self.where else ""
        verdict = "verified" if self.ok else "wrong"
        return f"{verdict}: {self.what}: the largest error found is {self.error:.2g}·|A||B|{at}, the bound {self.bound:.2g}"

    def report(self, name: str = "") -> None:
        """Log it. Raises VerificationError for a wrong product, which the message calls ``name`` if it has one."""
        said = f"{name}: {self}" if name else str(self)
        if not self.ok:
            raise VerificationError(said, self.error, self.bound)
        log.info("%s", said)
