"""Build the documentation as a static site with search: `make site` writes it to build/site.

The pages are those of README.md and docs/, as code hosts show them. This program copies them to a staging directory,
rewrites the links that leave docs/, adds the navigation, and calls Sphinx, which fails on a broken link or anchor.

The navigation follows the tables of docs/README.md. Pages that no table names come at the end of the section of their
folder, and the pages of a folder with a README.md are below it: a new page is never lost.
"""

import argparse
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "site"

# Pages outside docs/, and pages with another name on the site. `<folder>/README.md` becomes `<folder>.md`.
NAMES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
TITLES = {"SECURITY.md": "Reporting a vulnerability"}  # of pages whose title another page has
FILES = "files"  # where files that are no pages go
ORPHAN = "---\norphan: true\n---\n\n"  # before a page that the navigation does not list
START = "Start"
HERO_ENDS = "Do not use it if"  # the first words of README.md that hero.md does not replace
# The section of a page that no table of docs/README.md names, by the beginning of its path.
SECTIONS = {
    "docs/tutorial": START,
    "docs/recipes": START,
    "docs/coming-from": START,
    "examples": START,
    "docs/reference": "Reference",
    "docs/decisions": "Internals",
    "CHANGELOG": "Internals",
    "CONTRIBUTING": "Internals",
    "SECURITY": "Operation",
    "docs/": "Guide",
    "": "Internals",
}

_LINK = re.compile(r"(\]\()([^()\s]+)(\))|(<img [^>]*src=\")([^\"]+)(\")")
_CODE = re.compile(r"^(`{3,}).*?^\1\s*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^()\s#]+)\)", re.MULTILINE)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


class Stage(NamedTuple):
    """The staging directory, the pages with their names on the site, and the sections of the navigation."""

    directory: Path
    pages: dict[str, str]  # path in the repository → path on the site
    sections: dict[str, list[str]]  # title → pages
    titles: dict[str, str]  # path in the repository → title in the navigation, if it is not that of the page


def find_pages(root: Path) -> dict[str, str]:
    """Return every page by its path in the repository, with its path on the site."""
    found = {name: target for name, target in NAMES.items() if (root / name).exists()}
    for path in sorted(root.glob("*/README.md")):
        found.setdefault(path.relative_to(root).as_posix(), f"{path.parent.name}.md")
    for path in sorted((root / "docs").rglob("*.md")):
        name = path.relative_to(root).as_posix()
        target = name.removeprefix("docs/")
        folder, _, file = target.rpartition("/")
        found.setdefault(name, f"{folder}/index.md" if file == "README.md" else target)
    return found


def find_sections(root: Path, pages: dict[str, str]) -> dict[str, list[str]]:
    """Return the pages of each section of the navigation, in its order."""
    parts = _SECTION.split((root / "docs/README.md").read_text())
    sections: dict[str, list[str]] = {START: ["docs/README.md"]}
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        names = [_listed(link) for _, link in _ROW.findall(text)]
        here = sections.setdefault(title, [])
        here.extend(name for name in names if name in pages and name != "README.md" and not _folder_index(name, pages))
    listed = {"README.md", *(name for names in sections.values() for name in names)}
    for name in pages:
        if name not in listed and _folder_index(name, pages) is None:
            sections.setdefault(_section_of(name), []).append(name)
    return {title: list(dict.fromkeys(names)) for title, names in sections.items() if names}


def find_titles(root: Path, pages: dict[str, str]) -> dict[str, str]:
    """Return short titles for the navigation: those of docs/README.md, and those of the reference without that word."""
    found = TITLES | {_listed(link): title for title, link in _ROW.findall((root / "docs/README.md").read_text())}
    for name in pages:
        title = _TITLE.search((root / name).read_text())
        if name not in found and title is not None and title[1].endswith(": reference"):
            found[name] = title[1].removesuffix(": reference")
    return found


def _listed(link: str) -> str:
    """Return the path in the repository of a link in docs/README.md."""
    return posixpath.normpath(posixpath.join("docs", link))


def _section_of(name: str) -> str:
    return next(section for beginning, section in SECTIONS.items() if name.startswith(beginning))


def _folder_index(name: str, pages: dict[str, str]) -> str | None:
    """Return the README.md that lists a page of a folder below docs/, or None."""
    folder = posixpath.dirname(name)
    index = f"{folder}/README.md"
    return index if folder not in ("", "docs") and index in pages and index != name else None


def rewrite(text: str, name: str, stage: Stage, root: Path) -> str:
    """Return the text of a page with its links as they are on the site. Code is left alone."""
    here = posixpath.dirname(stage.pages[name])

    def link(found: re.Match[str]) -> str:
        opened, target, closed = found.groups()[:3] if found[1] else found.groups()[3:]
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, hash_sign, heading = target.partition("#")
        source = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if (root / source).is_dir():
            source = f"{source}/README.md" if f"{source}/README.md" in stage.pages else source
        moved = stage.pages.get(source) or _copy(source, stage, root)
        return f"{opened}{posixpath.relpath(moved, here or '.')}{hash_sign}{heading}{closed}"

    spans = [(found.start(), found.end()) for found in _CODE.finditer(text)]
    return _LINK.sub(lambda found: found[0] if _inside(found.start(), spans) else link(found), text)


def _inside(at: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= at < end for start, end in spans)


def _copy(source: str, stage: Stage, root: Path) -> str:
    """Copy a file that is no page, and return its path on the site. A directory becomes a page that lists its files."""
    inside = source.removeprefix("docs/")
    target = inside if source.startswith("docs/") else f"{FILES}/{source}"
    if (root / source).is_dir():
        files = sorted(path for path in (root / source).rglob("*") if path.is_file())
        lines = []
        for path in files:
            copied = _copy(path.relative_to(root).as_posix(), stage, root)
            lines.append(
                f"- [{path.relative_to(root / source)}]({posixpath.relpath(copied, posixpath.dirname(target))})"
            )
        page = stage.directory / f"{target}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"{ORPHAN}# {source}/\n\n" + "\n".join(lines) + "\n")
        return f"{target}.md"
    if not (root / source).exists():
        return source  # Sphinx reports it as broken
    copy = stage.directory / target
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.endswith(".md"):
        copy.write_text(f"{ORPHAN}{(root / source).read_text()}")
    else:
        shutil.copyfile(root / source, copy)
    return target


def stage_pages(root: Path, directory: Path) -> Stage:
    """Write all pages to the staging directory, with their navigation."""
    pages = find_pages(root)
    stage = Stage(directory, pages, find_sections(root, pages), find_titles(root, pages))
    for name, target in pages.items():
        text = rewrite(_first_screen(root) if name == "README.md" else (root / name).read_text(), name, stage, root)
        below = [other for other in pages if _folder_index(other, pages) == name]
        if name == "README.md":
            text += "".join(_toctree(names, stage, here="", caption=title) for title, names in stage.sections.items())
        elif below:
            text += _toctree(below, stage, here=posixpath.dirname(target))
        (directory / target).parent.mkdir(parents=True, exist_ok=True)
        (directory / target).write_text(text)
    return stage


def _first_screen(root: Path) -> str:
    """Return README.md, whose beginning is hero.md on the site: what the product is, and what it looks like."""
    text, hero = (root / "README.md").read_text(), root / "tools/site/hero.md"
    if not hero.exists():
        return text
    title, _, rest = text.partition("\n")
    _, limits, rest = rest.partition(HERO_ENDS)
    assert limits, f"README.md has no line that begins with {HERO_ENDS!r}"
    return f"{title}\n\n{hero.read_text()}{limits}{rest}"


def _toctree(names: list[str], stage: Stage, *, here: str, caption: str = "") -> str:
    """Return the part of the navigation below a page."""
    entries = []
    for name in names:
        path = posixpath.relpath(stage.pages[name], here or ".").removesuffix(".md")
        entries.append(f"{stage.titles[name]} <{path}>" if name in stage.titles else path)
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n\n" + "\n".join([*head, *entries, "```"]) + "\n"


def external_requests(site: Path) -> list[str]:
    """Return the files of the site that make a browser ask another host: scripts, styles, fonts and images."""
    asks = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//|<link\b(?![^>]*rel=["'](?:canonical|search)["'])[^>]*"""
        r"""\bhref=["'](?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//"""
    )
    return [
        str(path.relative_to(site))
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css") and asks.search(path.read_text(errors="replace"))
    ]


def build(root: Path, output: Path) -> int:
    """Build the site. Return 0, or the status of a failure: a warning of Sphinx, or a request to another host."""
    from sphinx.cmd.build import main as sphinx

    staged = output.with_name(f"{output.name}-source")
    for directory in (staged, output):
        shutil.rmtree(directory, ignore_errors=True)
    staged.mkdir(parents=True)
    stage_pages(root, staged)
    here = str(PurePosixPath(__file__).parent)
    options = [
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-c",
        here,
        "-d",
        str(output.with_name(f"{output.name}-cache")),
    ]
    status = sphinx([*options, str(staged), str(output)])
    if status == 0 and (asking := external_requests(output)):
        print(f"these pages ask another host: {', '.join(asking)}", file=sys.stderr)
        return 1
    return status


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args(argv)
    status = build(ROOT, arguments.output.resolve())
    if status == 0:
        print(f"open {os.path.relpath(arguments.output / 'index.html')}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
