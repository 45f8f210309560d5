"""What every page is made of: the libraries that draw its charts, its policy, its data, and writing it whole."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup, escape

from ..records.legible import legible

HERE = Path(__file__).parent

#: Altair 6 writes Vega-Lite 6.
VEGALITE = "6.4"


def page(template: str, *, data: Any, script: str, styles: Sequence[str], charts: bool = True, **values: Any) -> str:
    """A page as text: ``template`` filled with ``values``, its style sheets, and ``data`` as JSON for its ``script``.

    Without ``charts`` it does without the libraries that draw them.
    """
    scripts = [_libraries(), _own(script)] if charts else [_own(script)]
    text = (
        _world()
        .get_template(template)
        .render(
            data=_json(data),
            scripts=scripts,
            policy=_policy(scripts),
            css="".join(_own(name) for name in styles),
            **values,
        )
    )
    # A lone surrogate in a name from outside has no UTF-8; everything else has.
    return text.encode("utf-8", "replace").decode("utf-8")


def write_whole(text: str, path: str | Path) -> Path:
    """Writes into a file beside ``path``, then moves it there: a reader never sees half a page."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's 0600 is for secrets
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def _json(data: Any) -> str:
    """JSON that cannot end the script element in which it stands, for any kernel's name.

    Control characters are shown as text, as they are in the rest of the page: a chart's expressions have names in them, and
    U+2028 would end a line in the middle of one.
    """
    text = json.dumps(legible_data(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from vl-convert's own copy: nothing is fetched."""
    bundle = vl_convert.javascript_bundle(vl_version=VEGALITE)  # type: ignore[call-arg]  # its stub is wrong
    # In a function, for its top level has hundreds of short names; "</script" may stand in its strings.
    return "(()=>{" + bundle.replace("</script", "<\\/script").replace("\r", "") + "\n})()"


def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Content-Security-Policy: these scripts by their hashes, inline styles, and no request to anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def legible_data(data: Any) -> Any:
    """JSON values with control characters in texts shown as text."""
    if isinstance(data, dict):
        return {legible_data(key): legible_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [legible_data(item) for item in data]
    return legible(data) if isinstance(data, str) else data


def marked(text: Any) -> Markup:
    """Any text as a part of a page or a picture: escaped, and control characters shown as text."""
    return escape(legible(str(text)))


def _breakable(name: str) -> Markup:
    """A kernel's name that may be broken after its slash and underscores where a phone has no room."""
    return Markup(str(marked(name)).replace("/", "/<wbr>").replace("_", "_<wbr>"))


def _finalized(value: Any) -> Any:
    """What a template shows of a value: of markup all, for that is ours."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _world() -> jinja2.Environment:
    world = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
    )
    world.filters["breakable"] = _breakable
    return world
