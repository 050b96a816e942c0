"""Pages and links of the site that lie elsewhere in the repository."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository, and the pages of the site that they are."""

PLAY = "src/neuralsort/play/"
"""The page to play with, which is part of the package; on the site it is in `play/page/`."""

LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<place>#[^)\s]*)?\)")
"""A link, if not to another host or to a place on the same page."""

FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
"""Code, in which `names[i](x)` is a call and no link."""

LOADED = re.compile(
    r"""<(?:script|img|iframe|link rel="(?:stylesheet|icon|preconnect)")[^>]*"""
    r"""(?:src|href)="(?:https?:)?//[^"]*"""
)
"""What a browser would fetch from another host by itself."""


def site_path(path: str) -> str | None:
    """Where a file of the repository is on the site, if it is there."""
    if path.startswith(PLAY):
        return f"play/page/{path.removeprefix(PLAY)}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    shown = (ROOT / PLAY).glob("*.[!p]*")  # all but the Python
    played = sorted(f"{PLAY}{path.name}" for path in shown)
    for source in (*PAGES, *played):
        files.append(File.generated(config, site_path(source), abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lets links that hold in the repository hold on the site."""
    here = page.file.src_uri
    source = {site: path for path, site in PAGES.items()}.get(here, f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["path"]))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {path}, which does not exist.")
        if (target := site_path(path)) is None:
            return f"{found['text']} (`{path}` in the repository)"
        link = posixpath.relpath(target, posixpath.dirname(here) or ".")
        return f"[{found['text']}]({link}{found['place'] or ''})"

    parts = FENCED.split(markdown)  # text and code in turn
    parts[::2] = [LINK.sub(led, text) for text in parts[::2]]
    return "".join(parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Makes sure that no page loads anything from another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := LOADED.search(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path} loads something from another host: {found[0]}")
