"""What MkDocs does beyond its configuration: pages for what lies outside ``docs/``, and links and pictures that suit a site.

The Markdown is written for a reader of the repository. A link to a source file leads here to a page with its text, a link to
a record to a copy of it, and a link to a folder becomes plain text. CONTRIBUTING.md, CHANGELOG.md and the notebooks become
pages; what the cells of a notebook show is stored in it, so that nothing runs while the site is built. Formulas between
dollar signs become MathML, which browsers draw without a script or a font. Alerts of GitHub (``> [!NOTE]``) become those of
the theme, and a public name in code, such as ``tw.plan(a, b)``, becomes a link to its entry in the reference.
"""

from __future__ import annotations

import functools
import html
import logging
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import notebooks
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
#: File of the repository → page of the site; README's place is taken by the first page.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
PAGES |= {f"examples/notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in notebooks.FOLDER.glob("*.ipynb")}
#: How the text of a source page is highlighted; files with other suffixes are copied as they are.
LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".toml": "toml"}

#: A formula as pymdownx.arithmatex leaves it.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
#: With this logger a warning stops a strict build.
log = logging.getLogger("mkdocs.hooks")

LINK = re.compile(r"(?<!\\)\[([^\[\]]*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
#: An entry of the reference; the table of contents shows its full name.
ENTRY = re.compile(r"^::: (\S+)\n(?!    options)", re.MULTILINE)
#: A public name in code, perhaps with a call's arguments; a heading or a link around it is matched first, and left alone.
MENTION = re.compile(
    r"^#.*$|\[[^\[\]]*\][(\[][^()\[\]]*[)\]]|(?<!`)`(?:tw|tilewright)\.([\w.]+)(?:\([^`]*\))?`(?!`)", re.MULTILINE
)
#: An alert of GitHub: its kind, and its lines with their marks.
ALERT = re.compile(r"^> \[!(NOTE|TIP|WARNING)\]\n((?:^>.*\n?)+)", re.MULTILINE)
#: A cell of a table; one with more letters than ``PROSE`` gets a class, so that a phone does not squeeze its column.
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
PROSE = 45
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)


def origin(page: str) -> str:
    """The file of the repository that a page is made from.

    >>> origin("contributing.md"), origin("guides/bench.md")
    ('CONTRIBUTING.md', 'docs/guides/bench.md')
    """
    return next((file for file, made in PAGES.items() if made == page and page != "index.md"), f"docs/{page}")


def target(page: str, link: str) -> str:
    """The path in the repository that a link of a page leads to; anchors are dropped.

    >>> target("guides/bench.md", "../../src/tilewright/api/matmul.py#L3")
    'src/tilewright/api/matmul.py'
    """
    return os.path.normpath(Path(origin(page)).parent / link.partition("#")[0])


def place(path: str) -> str | None:
    """Where the site has a file of the repository; None where it has none.

    >>> place("docs/gpu.md"), place("README.md"), place("docs/summation.py"), place("benchmarks/kills.jsonl")
    ('gpu.md', 'index.md', 'source/docs/summation.py.md', 'source/benchmarks/kills.jsonl')
    """
    if path in PAGES:
        return PAGES[path]
    if not (ROOT / path).is_file():
        return None
    if Path(path).suffix in LANGUAGES:
        return f"source/{path}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}"


def links(text: str) -> list[str]:
    """The targets of the relative links of a text, without those in code."""
    return [link for _, link in LINK.findall(FENCE.sub("", text)) if is_relative(link)]


def is_relative(link: str) -> bool:
    """Whether a link leads to another file of the repository."""
    return not link.startswith("#") and not re.match(r"[a-z]+:", link)


def rewritten(page: str, text: str) -> str:
    """The text of a page with the links of the repository replaced by those of the site.

    >>> rewritten("engine.md", "[the engine](../src/tilewright/cpu/kernels), [bench](guides/bench.md#x)")
    'the engine, [bench](guides/bench.md#x)'
    """

    def mend(match: re.Match[str]) -> str:
        words, link = match.groups()
        if not is_relative(link):
            return match[0]
        found = place(target(page, link))
        if found is None and (ROOT / target(page, link)).is_dir():
            return words
        there = os.path.relpath(found, Path(page).parent) if found else link  # strict mode reports a dead link
        return f"[{words}]({there}{''.join(link.partition('#')[1:]) if found else ''})"

    return outside_code(lambda part: LINK.sub(mend, part), text)


def outside_code(change: Callable[[str], str], text: str) -> str:
    """The text with its parts outside blocks of code changed."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join(parts) + change(text[end:])


@functools.cache
def entries() -> frozenset[str]:
    """The full names of all entries of the reference."""
    return frozenset(
        name for page in (ROOT / "docs/api").glob("*.md") for name in ENTRY.findall(page.read_text("utf-8"))
    )


def with_references(text: str) -> str:
    """The text with each section's first mention of a public name as a link to its entry in the reference.

    >>> print(with_references("`tw.plan(a, b)`, then `tw.plan`, `tw.away`\\n## `tw.plan`\\n`tilewright.plan`"))
    [`tw.plan(a, b)`][tilewright.plan], then `tw.plan`, `tw.away`
    ## `tw.plan`
    [`tilewright.plan`][tilewright.plan]
    """
    seen: set[str] = set()

    def mend(match: re.Match[str]) -> str:
        if match[0].startswith("#"):
            seen.clear()
        name = f"tilewright.{match[1]}"
        if name in seen or name not in entries():
            return match[0]
        seen.add(name)
        return f"[{match[0]}][{name}]"

    return outside_code(lambda part: MENTION.sub(mend, part), text)


@functools.cache
def guides(name: str) -> tuple[str, ...]:
    """The guides that mention an entry of the reference as links from the reference.

    >>> "[Multiply arrays](../guides/matmul.md)" in guides("tilewright.matmul"), guides("tilewright.away")
    (True, ())
    """
    found = []
    for path in sorted((ROOT / "docs/guides").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        names: set[str] = set()
        outside_code(lambda part, names=names: names.update(MENTION.findall(part)) or "", text)
        if name.removeprefix("tilewright.") in names:
            title = text.partition("\n")[0].removeprefix("# ")
            found.append(f"[{title}](../guides/{path.name})")
    return tuple(found)


def entry(match: re.Match[str]) -> str:
    """An entry of the reference: its full name is put into the contents, and the guides that mention it below it."""
    block = f"{match[0].rstrip()}\n    options:\n      toc_label: {match[1]}\n"
    named = ", ".join(guides(match[1]))
    return f"{block}\nGuides: {named}.\n{{: .guides }}\n" if named else block


def with_admonitions(text: str) -> str:
    """The text with GitHub's alerts as the theme has them.

    >>> print(with_admonitions("> [!NOTE]\\n> One.\\n>\\n> Two.\\n"))
    !!! note
    <BLANKLINE>
        One.
    <BLANKLINE>
        Two.
    <BLANKLINE>
    """

    def mend(match: re.Match[str]) -> str:
        lines = [line.removeprefix(">").removeprefix(" ") for line in match[2].splitlines()]
        return "\n".join([f"!!! {match[1].lower()}", "", *(f"    {line}" if line else "" for line in lines), ""])

    return outside_code(lambda part: ALERT.sub(mend, part), text)


def source_page(path: str) -> str:
    """A page with the text of a source file; the search does not index it."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    language = LANGUAGES[Path(path).suffix]
    head = f"---\ntitle: {Path(path).name}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{path}`\n\n"
    return f'{head}~~~~~{{.{language} linenums="1"}}\n{text}\n~~~~~\n'


def page_text(file: str) -> str:
    """The text of a page that is made of a file outside ``docs/``; a notebook has a link to itself below its title."""
    if not file.endswith(".ipynb"):
        return (ROOT / file).read_text(encoding="utf-8")
    title, _, text = notebooks.markdown(notebooks.read(ROOT / file)).partition("\n")
    return f"{title}\n\n[Download this notebook](../source/{file})\n{text}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names the version that the pages describe, at the foot of each."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    config.copyright = f"{config.site_name} {version} · {config.copyright}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside ``docs/``, and whatever the pages link to there."""
    for file, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=page_text(file)))
        if file.endswith(".ipynb"):
            files.append(File.generated(config, f"source/{file}", abs_src_path=str(ROOT / file)))
    for page in [file for file in files if file.is_documentation_page()]:
        for link in links(page.content_string):
            path = target(page.src_uri, link)
            made = place(path)
            if made is None or not made.startswith("source/") or files.get_file_from_path(made):
                continue
            what: dict[str, Any] = (
                {"content": source_page(path)} if made.endswith(".md") else {"abs_src_path": str(ROOT / path)}
            )
            files.append(File.generated(config, made, **what, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


#: How the search ranks pages beside others with the same words: users' pages first, those about the project last.
BOOSTS = {"start.md": 4, "guides/": 4, "api/arrays.md": 4, "api/": 2, "notebooks/": 2}
BOOSTS |= dict.fromkeys(("architecture.md", "changes.md", "contributing.md", "records.md"), 0.3)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mends links, shows one of two pictures by the page's palette, highlights examples as a console session, puts full
    names into the contents of the reference, links the other pages to its entries, and ranks pages for the search."""
    name = page.file.src_uri
    if name.startswith("source/"):
        return markdown
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if name.startswith(start)), 1)}
    markdown = ENTRY.sub(entry, markdown)
    if not name.startswith("api/"):
        markdown = with_references(markdown)
    markdown = with_admonitions(markdown)
    markdown = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    return re.sub(r"^```python\n(?=>>>)", "```pycon\n", rewritten(name, markdown), flags=re.MULTILINE)


def mathml(page: str, found: re.Match[str]) -> str:
    """A formula of LaTeX as MathML; a command that the converter does not know is a warning.

    >>> drawn = mathml("a.md", FORMULA.match(r'<span class="arithmatex">\\(k \\le 2^{16}\\)</span>'))
    >>> drawn.startswith("<math"), "<msup><mn>2</mn><mrow><mn>16</mn></mrow></msup>" in drawn
    (True, True)
    """
    formula = html.unescape(found[2])
    for side, word in (("l", "left"), ("r", "right")):  # otherwise the converter gives a bar the space of an operator
        formula = formula.replace(f"\\{side}vert", f"\\{word}|").replace(f"\\{side}Vert", f"\\{word}\\|")
    display = "inline" if found[1] == "span" else "block"
    made = convert(formula, display=display)
    if "\\" in made:
        log.warning("%s: no MathML for %s", page, formula)
    return made if display == "inline" else f'<div class="formula" tabindex="0">{made}</div>'


def cell(found: re.Match[str]) -> str:
    """A cell of a table, with a class if it has many words.

    >>> cell(CELL.match("<td>12</td>")), cell(CELL.match(f"<td>{'word ' * 12}</td>"))[:18]
    ('<td>12</td>', '<td class="prose">')
    """
    is_prose = len(re.sub(r"<[^>]+>", "", found[1])) > PROSE
    return f'<td class="prose">{found[1]}</td>' if is_prose else found[0]


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Draws the formulas of a page, lets the keyboard scroll what is wider than it, and marks cells with many words."""
    content = content.replace("<table>", '<table tabindex="0">')
    content = CELL.sub(cell, content)
    content = re.sub(r'<p>(?=<img [^>]*src="[^"]*figures/)', '<p tabindex="0">', content)
    return FORMULA.sub(lambda found: mathml(page.file.src_uri, found), content)


def on_post_page(output: str, **_: Any) -> str:
    """Gives the theme's search a name for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
