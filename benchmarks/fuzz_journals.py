"""Mutated journals by the thousand: none may give a traceback, a hang, more memory than its size justifies, or a wrong C.

    python benchmarks/fuzz_journals.py --count 10000 --record benchmarks/fuzz-journals.json
    python benchmarks/fuzz_journals.py --guided 100000 --record benchmarks/fuzz-journals-guided.json

The first multiplies: each journal is taken up by ``multiply(resume=True)``. The second looks at the reader and its checks
alone and needs atheris (``pip install atheris``, Linux), which chooses inputs by the code that they reach.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def fuzz(count: int, seed: int) -> dict[str, Any]:
    """Half of them with changed bytes, half forged; what became of them, and those that did harm."""
    from support.mutated_journals import Unfinished, changed, forged, small_places

    verdicts: dict[str, collections.Counter[str]] = {"changed": collections.Counter(), "forged": collections.Counter()}
    harm, slowest = [], 0.0
    with tempfile.TemporaryDirectory() as folder, small_places(Path(folder)):
        unfinished = Unfinished.begun()
        for number in range(count):
            kind = "changed" if number % 2 else "forged"
            rng = random.Random(f"{seed} {number}")
            made = (
                changed(rng, unfinished.journal, unfinished.other)
                if kind == "changed"
                else forged(rng, unfinished.journal)
            )
            began = time.perf_counter()
            verdict = unfinished.verdict(made)
            slowest = max(slowest, time.perf_counter() - began)
            if verdict not in ("refused", "whole", "lie") or (verdict == "lie" and kind == "changed"):
                harm.append(
                    {"number": number, "kind": kind, "verdict": verdict, "journal": made[:2000].decode("latin-1")}
                )
                verdict = "harm"
            verdicts[kind][verdict] += 1
    return {"verdicts": verdicts, "slowest_s": round(slowest, 3), "harm": harm}


# ---- guided by coverage ----------------------------------------------------------------------------------------------


def guided(runs: int, seed: int) -> dict[str, Any]:
    """The reader and the checks, in a process of its own: what atheris says in the end."""
    with tempfile.TemporaryDirectory() as corpus:
        command = [sys.executable, __file__, "--child", corpus, f"-runs={runs}", f"-seed={seed}", "-timeout=2"]
        done = subprocess.run(
            [*command, "-rss_limit_mb=1024", "-max_len=4096"], capture_output=True, text=True, check=False
        )
        kept = len(list(Path(corpus).iterdir()))
    last = [line for line in done.stderr.splitlines() if "DONE" in line or "ERROR" in line or "Error" in line][-3:]
    return {"exit": done.returncode, "said": last, "inputs_kept": kept, "harm": [] if done.returncode == 0 else last}


def child(corpus: str, options: list[str]) -> None:
    import atheris

    parts = [
        "tilewright.large.streaming.run.journal",
        "tilewright.large.streaming.plan.cuts",
        "tilewright.large.streaming.plan.grid",
    ]
    with atheris.instrument_imports(include=parts):  # before anything else imports them
        from tilewright.errors import FileError, ResumeError
        from tilewright.large.streaming.run.journal import BegunProduct, read_journal
    from support.mutated_journals import ROOM, SIDE, sign

    path = Path(tempfile.mkdtemp()) / "j"
    facts = {"a": "1"}
    cut = {"m": SIDE, "n": SIDE, "k": SIDE, "bm": 256, "bn": 256, "bk": 300, "kc": 300}
    head = {"journal": "multiply", "schema": 2, "run": "0", "facts": facts, "grid": cut, "inode": 7}
    whole = sign([head, {"tile": [0, 0]}, {"tile": [1, 2]}])
    Path(corpus, "whole").write_bytes(b"\0" + whole)
    Path(corpus, "signed").write_bytes(
        b"\1" + b"\n".join(line.rpartition(b', "digest"')[0] + b"}" for line in whole.splitlines())
    )

    def one(data: bytes) -> None:
        """As it is; or with right digests, without which no input would pass the first check."""
        path.write_bytes(_signed_lines(data[1:]) if data[:1] == b"\1" else data[1:])
        try:
            begun: BegunProduct | None = read_journal(path)
            if begun is not None:
                begun.check(facts, (SIDE, SIDE, SIDE), ROOM, path)
                assert len(begun.finished) <= 9
                assert begun.end <= path.stat().st_size
        except (ResumeError, FileError) as error:
            words = str(error)
            if "\n" in words or len(words) > 1000:
                raise ValueError(words) from None

    atheris.Setup([sys.argv[0], corpus, *options], one)
    atheris.Fuzz()


def _signed_lines(data: bytes) -> bytes:
    from tilewright.large.streaming.run.journal import _digest

    signed, digest = b"", b""
    for line in data.split(b"\n"):
        digest = _digest(line[:-1], digest)
        signed += line[:-1] + b', "digest": "%s"}\n' % digest.hex().encode()
    return signed


# ---- the command -----------------------------------------------------------------------------------------------------


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--guided", type=int, default=0, metavar="RUNS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    found = guided(asked.guided, asked.seed) if asked.guided else fuzz(asked.count, asked.seed)
    record = {
        **{"kind": "fuzz", "schema": 1, "what": "journals", "by": "coverage" if asked.guided else "seed"},
        **{"inputs": asked.guided or asked.count, "seed": asked.seed, **found},
        **{"seconds": round(time.perf_counter() - began, 1), "python": sys.version.split()[0]},
        "command": "python benchmarks/fuzz_journals.py "
        + (f"--guided {asked.guided}" if asked.guided else f"--count {asked.count}")
        + f" --seed {asked.seed}",
    }
    text = json.dumps(record, indent=1)
    print(text)
    if asked.record is not None:
        asked.record.write_text(text + "\n", encoding="utf-8")
    return 1 if found["harm"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
