#!/usr/bin/env python3
"""Writes the pages of this clone as a site that a browser opens from the disk.

    python3 scripts/make_site.py [FOLDER]      # build/site

Each Markdown page that git knows becomes a page at the same place, README.md of the root
index.html. A file of the sources that a page links to becomes a page of its text, and a folder its
README or a list of its files; so the site is whole without the clone. It loads nothing from
elsewhere and has no script. At the end each link of each page is followed; a link that leads
nowhere fails. It needs pandoc, whose `gfm` reads Markdown as GitHub does.
"""
import concurrent.futures
import html
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = {".svg", ".png", ".jpg"}
FIRST = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
MAX_SOURCE_BYTES = 1 << 20

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #8882; }
body { margin: 0; display: flex; font: 16px/1.55 system-ui, sans-serif; }
nav { flex: 0 0 15rem; height: 100vh; overflow-y: auto; position: sticky; top: 0; padding: 1rem;
      box-sizing: border-box; border-right: 1px solid var(--line); font-size: .9rem; }
nav h2 { font-size: .8rem; margin: 1.2rem 0 .3rem; opacity: .7; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a { display: block; padding: .1rem .4rem; text-decoration: none; border-radius: 4px; }
nav a.here { background: var(--dim); font-weight: 600; }
main { flex: 1; min-width: 0; max-width: 60rem; padding: 1rem 2rem 4rem; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 .8rem; }
h1 { margin-top: .5rem; }
table { display: block; overflow-x: auto; border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; vertical-align: top;
         text-align: left; }
code, pre { font: .88em/1.45 ui-monospace, monospace; background: var(--dim); border-radius: 4px; }
code { padding: .1em .25em; }
pre { padding: .8rem; overflow-x: auto; }
pre code { padding: 0; background: none; font-size: 1em; }
img { max-width: 100%; background: #fff; }
@media (max-width: 50rem) { body { display: block; }
  nav { position: static; height: auto; border: 0; } main { padding: 1rem; } }
"""


def fail(text):
    sys.exit(f"error: {text}")


def list_files():
    said = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others",
                           "--exclude-standard"], capture_output=True, check=False)
    if said.returncode != 0:
        fail(f"{ROOT} is no clone: {said.stderr.decode().strip()}")
    names = said.stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def address_of(name):
    """The page of a file: README.md of the root is the first one, and index.html of its folder."""
    if name in ("", "README.md"):
        return "index.html"
    if posixpath.basename(name) == "README.md":
        return posixpath.join(posixpath.dirname(name), "index.html")
    return name.removesuffix(".md") + ".html"


class Site:
    def __init__(self, files):
        self.files = set(files)
        self.folders = {parent.as_posix() for name in files
                        for parent in pathlib.PurePosixPath(name).parents} - {"."}
        self.pages = [name for name in files if name.endswith(".md")
                      and not name.startswith((".github/", "tests/data/"))]
        self.sources, self.images, self.lists = set(), set(), set()
        self.mistakes = []

    def rewrite(self, page, target):
        """The link of a Markdown page as one of the site. What it needs there is noted."""
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or target.startswith(("#", "//")):
            return target
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page),
                                                 urllib.parse.unquote(parts.path)))
        if name == ".":
            name = "README.md"
        if name in self.folders and f"{name}/README.md" in self.pages:
            name = f"{name}/README.md"
        if name in self.folders:
            self.lists.add(name)
            there = f"{name}/index.html"
        elif name in self.pages:
            there = address_of(name)
        elif name in self.files and posixpath.splitext(name)[1] in IMAGES:
            self.images.add(name)
            there = name
        elif name in self.files:
            self.sources.add(name)
            there = f"{name}.html"
        else:
            self.mistakes.append(f"{page}: {target} is no file of the clone")
            return target
        path = posixpath.relpath(there, posixpath.dirname(address_of(page)) or ".")
        return path + (f"#{parts.fragment}" if parts.fragment else "")

    def rewrite_all(self, page, body):
        return re.sub(r'\b(href|src)="([^"]*)"', lambda link: '{}="{}"'.format(
            link[1], html.escape(self.rewrite(page, html.unescape(link[2])))), body)

    def navigation(self, here):
        docs = [name for name in self.pages if posixpath.dirname(name) == "docs"]
        results = [name for name in self.pages if name.startswith("bench/results/")]
        shown = set(FIRST) | set(docs) | set(results)
        groups = [("Tailrace", [name for name in FIRST if name in self.pages]), ("Docs", docs),
                  ("Folders", [name for name in self.pages if name not in shown]),
                  ("Results", results)]
        text, folder = "", posixpath.dirname(here) or "."
        for title, names in groups:
            items = "".join(
                '<li><a href="{}"{}>{}</a></li>\n'.format(
                    html.escape(posixpath.relpath(address_of(name), folder)),
                    ' class="here"' if address_of(name) == here else "",
                    html.escape(label_of(name))) for name in names)
            if items:
                text += f"<h2>{title}</h2>\n<ul>\n{items}</ul>\n"
        return text

    def wrap(self, here, title, body):
        style = posixpath.relpath("style.css", posixpath.dirname(here) or ".")
        return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f"<title>{html.escape(title)}</title>\n"
                f'<link rel="stylesheet" href="{style}">\n</head>\n<body>\n'
                f"<nav>\n{self.navigation(here)}</nav>\n<main>\n{body}</main>\n</body>\n</html>\n")


def label_of(name):
    if name in FIRST:
        return name.removesuffix(".md").capitalize()
    if posixpath.basename(name) == "README.md":
        return "all pages" if name == "docs/README.md" else posixpath.dirname(name)
    return posixpath.basename(name).removesuffix(".md")


def render(name):
    return subprocess.run(["pandoc", "--from=gfm", "--to=html5", "--wrap=none", "--no-highlight",
                           str(ROOT / name)], capture_output=True, check=True).stdout.decode()


def write(folder, address, text):
    path = folder / address
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(folder):
    """Writes the site; its mistakes."""
    site = Site(list_files())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bodies = dict(zip(site.pages, pool.map(render, site.pages)))
    write(folder, "style.css", STYLE)
    for page, body in bodies.items():
        heading = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.S)
        title = html.unescape(re.sub("<[^>]*>", "", heading[1])) if heading else page
        write(folder, address_of(page), site.wrap(address_of(page), title,
                                                  site.rewrite_all(page, body)))
    for name in sorted(site.images):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name in sorted(site.lists):
        inside = sorted(file for file in site.files if file.startswith(f"{name}/"))
        site.sources.update(inside)
        items = "".join('<li><a href="{0}.html">{0}</a></li>\n'.format(
            html.escape(posixpath.relpath(file, name))) for file in inside)
        write(folder, f"{name}/index.html", site.wrap(
            f"{name}/index.html", name, f"<h1>{html.escape(name)}</h1>\n<ul>\n{items}</ul>\n"))
    for name in sorted(site.sources):
        data = (ROOT / name).read_bytes()
        text = data[:MAX_SOURCE_BYTES].decode(errors="replace")
        if len(data) > MAX_SOURCE_BYTES:
            text += f"\n... {len(data)} bytes in all\n"
        body = f"<h1>{html.escape(name)}</h1>\n<pre>{html.escape(text)}</pre>\n"
        write(folder, f"{name}.html", site.wrap(f"{name}.html", name, body))
    return site.mistakes


class PageParser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.anchors, self.loads = [], set(), []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and tag != "meta":
                self.anchors.add(value)
            if name == "src" or (tag == "link" and name == "href"):
                self.loads.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")
        if tag in ("script", "iframe", "object"):
            self.loads.append(f"https://<{tag}>")


def check(folder):
    """Each link that leads nowhere, and each file that a page loads from elsewhere."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path.resolve()] = parser = PageParser()
        parser.feed(path.read_text())
    mistakes = []
    for path, parser in pages.items():
        here = path.relative_to(folder.resolve())
        mistakes += [f"{here}: loads {load}" for load in parser.loads
                     if urllib.parse.urlsplit(load).scheme or load.startswith("//")]
        for link in parser.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if not target.is_file() or not target.is_relative_to(folder.resolve()):
                mistakes.append(f"{here}: {link} leads nowhere")
            elif parts.fragment and target in pages and (
                    urllib.parse.unquote(parts.fragment) not in pages[target].anchors):
                mistakes.append(f"{here}: {link} names no heading")
    return mistakes


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    if not shutil.which("pandoc"):
        fail("there is no pandoc; `make site` installs it")
    if folder.exists():
        if not (folder / "style.css").exists() and any(folder.iterdir()):
            fail(f"{folder} holds other files than a site")
        shutil.rmtree(folder)
    mistakes = build(folder) + check(folder)
    for mistake in mistakes:
        print(f"error: {mistake}", file=sys.stderr)
    if mistakes:
        sys.exit(1)
    print(f"{sum(1 for _ in folder.rglob('*.html'))} pages, every link leads somewhere: "
          f"{folder / 'index.html'}")


if __name__ == "__main__":
    main()
