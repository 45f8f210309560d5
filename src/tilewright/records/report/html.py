"""Makes a page from a template, style sheets, scripts and data, and writes it atomically. The page's policy forbids
requests."""

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

from ..legible import legible

HERE = Path(__file__).parent

#: Altair 6 writes Vega-Lite 6.
VEGALITE = "6.4"


def page(template: str, *, data: Any, script: str, styles: Sequence[str], charts: bool = True, **values: Any) -> str:
    """Return a page as text: ``template`` filled with ``values``, style sheets, and ``data`` as JSON for its
    ``script``. ``charts=False`` leaves out the libraries that draw charts."""
    own = _asset("scroll.js") + _asset(script)
    scripts = [_libraries(), own] if charts else [own]
    text = (
        _templates()
        .get_template(template)
        .render(
            data=_json(data),
            scripts=scripts,
            policy=_policy(scripts),
            css="".join(_asset(name) for name in styles),
            **values,
        )
    )
    # A lone surrogate in a name from outside has no UTF-8; everything else has.
    return text.encode("utf-8", "replace").decode("utf-8")


def write_whole(text: str, path: str | Path) -> Path:
    """Write text to a file next to ``path``, then move this file to ``path``, so that no reader sees an incomplete
    page."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp gives 0600; a page gets the usual mode
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def _json(data: Any) -> str:
    """JSON for a script element, which no kernel's name can end.

    Control characters become visible text, as in the rest of the page: the charts' expressions contain names, and U+2028 in
    one of them would end a line.
    """
    text = json.dumps(legible_data(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache  # takes a second, and pages share it
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from vl-convert's own copy: nothing is fetched."""
    bundle = vl_convert.javascript_bundle(vl_version=VEGALITE)  # type: ignore[call-arg]  # its stub is wrong
    # Wrapped in a function: its top level defines hundreds of short names. Its strings may contain "</script".
    return "(()=>{" + bundle.replace("</script", "<\\/script").replace("\r", "") + "\n})()"


def _asset(name: str) -> str:
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
    """Return JSON values with the control characters in their texts made visible."""
    if isinstance(data, dict):
        return {legible_data(key): legible_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [legible_data(item) for item in data]
    return legible(data) if isinstance(data, str) else data


def marked(text: Any) -> Markup:
    """Return text that is escaped for a page or a picture, with control characters made visible."""
    return escape(legible(str(text)))


def _breakable(name: str) -> Markup:
    """A kernel's name in which a line may break after slash and underscores, for narrow screens."""
    return Markup(str(marked(name)).replace("/", "/<wbr>").replace("_", "_<wbr>"))


def _legible_text(value: Any) -> Any:
    """Replaces control characters in a text before a template shows it; markup is our own and stays as it is."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache  # it has the templates that it compiled
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=_legible_text,
    )
    templates.filters["breakable"] = _breakable
    return templates
