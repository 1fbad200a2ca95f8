"""Links between the pages of a built site: each leads to a file that is there, and to a place in it."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.targets: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.targets.update(filter(None, (found.get("id"), found.get("name"))))
        self.links += [link for name in ("href", "src") if (link := found.get(name))]


def broken_links(site: Path) -> list[str]:
    """Return a line for every link within the site that leads nowhere.

    Parameters
    ----------
    site : path
        The folder with its pages.
    """
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].targets
            ):
                broken.append(f"{path.relative_to(site.resolve())}: {link} leads nowhere")
    return sorted(set(broken))
