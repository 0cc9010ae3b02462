"""Hooks of MkDocs: pages of other folders are part of the site, and links between files work on it.

Pages link to files of the repository by relative paths, so that they can be read without the site, too. Here a page of
another folder, such as `examples/mnist/README.md`, gets the same path on the site. A source file that a page links to
gets a page with its text, under `source/`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
#: The first page of the site has what this page says.
FRONT_PAGE = "README.md"
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
_LANGUAGES = {
    ".cuda": "docker",
    ".json": "json",
    ".py": "python",
    ".sbatch": "bash",
    ".sh": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    "Dockerfile": "docker",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of other folders, and those of source files; writes out the folders in the navigation."""
    pages = [page for page in _tracked("*.md") if page != FRONT_PAGE and not page.startswith(DOCS)]
    for page in pages:
        files.append(File.generated(config, page, content=(ROOT / page).read_text(encoding="utf-8")))
    for notebook in _tracked("*.ipynb"):
        content = _without_outputs((ROOT / notebook).read_text(encoding="utf-8"))
        files.append(File.generated(config, _page_of(notebook), content=content))
    sources = set[str]()
    for file in files.documentation_pages():
        sources.update(each for each in _targets(file) if _is_source(each))
    for source in sorted(sources):
        text = (ROOT / source).read_text(encoding="utf-8").replace("```", "`` `")
        path = PurePosixPath(source)
        language = _LANGUAGES.get(path.suffix or path.name, "text")
        content = f"# {source}\n\n```{language}\n{text}```\n"
        files.append(File.generated(config, _source_page(source), content=content))
    if config.nav is not None:
        config.nav = _expanded(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links to files of the repository; search lists the pages of other folders after those of docs/."""
    if page.file.generated_by:
        page.meta.setdefault("search", {"boost": 0.5})
    return _outside_of_code(markdown, lambda text: _LINK.sub(lambda link: _on_site(page.file, link[1]), text))


def _tracked(pattern: str) -> list[str]:
    """Returns the files that git has, or would add: not those of other checkouts and environments in this folder."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).exists())


def _repository_path(file: File) -> str:
    """Returns the path of a page in the repository."""
    return file.src_uri if file.generated_by else f"{DOCS}{file.src_uri}"


def _resolved(file: File, link: str) -> str:
    """Returns the path in the repository that a page's link leads to."""
    return os.path.normpath(Path(_repository_path(file)).parent / link)


def _targets(file: File) -> Iterator[str]:
    """Yields the files of the repository that a page links to."""
    for link in _LINK.findall(file.content_string):
        if "://" not in link:
            yield _resolved(file, link)


def _without_outputs(notebook: str) -> str:
    """Returns the page of a notebook: its prose as it is, its code in blocks."""
    blocks = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        blocks.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(blocks) + "\n"


def _page_of(notebook: str) -> str:
    return str(PurePosixPath(notebook).with_suffix(".md"))


def _is_source(path: str) -> bool:
    return not path.startswith((DOCS, "..")) and not path.endswith((".md", ".ipynb")) and (ROOT / path).is_file()


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _on_site(file: File, link: str) -> str:
    """Returns a link to the page of the site that has what a page links to."""
    if "://" in link or link.startswith("mailto:"):
        return link
    path = _resolved(file, link)
    if path == FRONT_PAGE:
        path = "index.md"
    elif path.startswith(DOCS):
        path = path.removeprefix(DOCS)
    elif (ROOT / path).is_dir():
        path = f"{path}/README.md"
    elif path.endswith(".ipynb"):
        path = _page_of(path)
    elif _is_source(path):
        path = _source_page(path)
    return os.path.relpath(path, PurePosixPath(file.src_uri).parent)


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Applies a function to the text between fenced blocks of code."""
    pieces = re.split(r"(^ *```.*?^ *```[^\S\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if number % 2 else change(piece) for number, piece in enumerate(pieces))


def _expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """Returns the navigation with "folder/*" replaced by pages; an entry that ends in "?" may have no page yet."""
    named = set(_names(nav))

    def entries(items: list[Any]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            if isinstance(item, dict):
                [(title, value)] = item.items()
                value = entries(value) if isinstance(value, list) else value
                found += [{title: value}] if value else []
            elif item.endswith("*"):
                found += _in_folder(item.removesuffix("*"), [page for page in pages if page not in named])
            elif not item.endswith("?") or item.removesuffix("?") in pages:
                found.append(item.removesuffix("?"))
        return found

    return entries(nav)


def _names(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        if isinstance(item, dict):
            for value in item.values():
                yield from _names(value if isinstance(value, list) else [value])
        else:
            yield item.removesuffix("?")


def _in_folder(folder: str, pages: list[str]) -> list[str]:
    """Returns the pages below a folder, those that introduce others first; for "" those that are in no folder."""
    found = [page for page in pages if (page.startswith(folder) if folder else "/" not in page)]
    return sorted(found, key=lambda page: (page.count("/") - _is_index(page), not _is_index(page), page))


def _is_index(page: str) -> bool:
    return PurePosixPath(page).name in ("index.md", "README.md")
