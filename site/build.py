"""`make site`: pages of the docs and of executed notebooks, in build/site/html; nothing in them comes from a network.

python site/build.py [--quick] [--kept]
"""

import argparse
import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

from bttlab.teaching.notebooks import PAGE_LINK, release
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say
from links import broken_links
from recorded import lay_out_recorded_runs
from stills import freeze

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "site"
GROUPS = {  # of docs/: what is not named here goes to the last
    "Use": ["hosts", "commands", "experiments", "survey", "methods", "cost", "teaching", "security"],
    "The accelerator": ["accelerator", "processor", "contraction", "vitis", "energy"],
    "What was measured": ["accuracy", "benchmarks", "reliability"],
    "More": [],
}
API = (  # packages and modules with pages made from their docstrings
    *(
        "bttlab.tensor",
        "bttlab.model",
        "bttlab.data",
        "bttlab.runs",
        "bttlab.runs.sweep",
        "bttlab.card",
        "bttlab.card.layer",
    ),
    *("bttlab.compiler.program", "bttlab.compiler.trace", "bttlab.compiler.module_file", "bttlab.estimate.card"),
    *("bttlab.baseline", "bttlab.lab", "bttlab_methods", "bttlab_cost.estimate", "bttlab_cost.configuration"),
)
API_PAGE = """# {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
```
"""
KERNEL_SECONDS = 300  # on a busy machine
PRESSES = {  # what a reader does or waits for, where nobody is
    "if budget(full=False, quick=True):": "if True:",
    "DesignExplorer(LENGTHS, design)\n": "DesignExplorer(LENGTHS, design)\nexplorer.programs.wait(300)\n",
}
QUICK = (  # the second cell of a page that was made with --quick
    "> **This page was made with few samples.** Its scores, curves and times show what the cells print, not how well "
    "anything trains: `make site` without `--quick` makes the whole one."
)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


class SiteError(BttlabError):
    """Why there is no site."""


def execute(source: Path, target: Path, quick: bool) -> None:
    """Run a notebook as it is handed out, in the folder of notebooks, and write it with outputs and stills.

    Raises
    ------
    SiteError
        If a cell fails.
    """
    notebook = nbformat.reads(release(source.read_bytes()).decode(), as_version=4)
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        for said, done in PRESSES.items():
            cell.source = cell.source.replace(said, done)
    with tempfile.TemporaryDirectory() as private:  # kernels' sockets, as `make lab` has them, and the runs
        os.environ |= {"JUPYTER_RUNTIME_DIR": private, "BTTLAB_RUNS": f"{private}/runs"}
        os.environ |= {"BTTLAB_QUICK": "1"} if quick else {}
        client = nbclient.NotebookClient(
            notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(source.parent)}}
        )
        client.startup_timeout = KERNEL_SECONDS
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{private}/kernel"
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            raise SiteError(f"{source.name} fails: {error.ename}: {error.evalue}") from None
        except (nbclient.exceptions.DeadKernelError, RuntimeError) as error:  # ended from outside, or did not start
            raise SiteError(f"{source.name} cannot be run: {error}") from None
    for cell, text in zip(notebook.cells, sources, strict=True):
        cell.source = text
    if quick:
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(QUICK))
    freeze(notebook)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def is_executed(source: Path, target: Path) -> bool:
    """Return whether a notebook was executed with the cells that it has now."""
    try:
        kept = nbformat.read(target, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return False
    now = nbformat.reads(release(source.read_bytes()).decode(), as_version=4)
    return [cell.source for cell in kept.cells if cell.source != QUICK] == [cell.source for cell in now.cells]


def lay_out(root: Path, notebooks: Path, tree: Path, api: tuple[str, ...] = ()) -> None:
    """Lay out Sphinx's sources as they lie in the checkout, with the README as the first page.

    Parameters
    ----------
    root : path
        The checkout.
    notebooks : path
        The folder of those that are shown.
    tree : path
        Made again.
    api : tuple of str
        Packages and modules that get a page of their public names.
    """
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(root / "docs", tree / "docs")
    shutil.copytree(notebooks, tree / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*", "__pycache__"))
    for page in (
        *root.glob("CONTRIBUTING.md"),
        *root.glob("data/**/README.md"),
        *root.glob("classroom/README.md"),
        *root.glob("findings/*.md"),
    ):
        (tree / page.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, tree / page.relative_to(root))
    shutil.copy(root / "README.md", tree / "index.md")
    lay_out_recorded_runs(root, tree)
    for page in [*tree.rglob("*.md"), *tree.rglob("*.ipynb")]:
        place = root / page.relative_to(tree).parent
        text = PAGE_LINK.sub("", page.read_text())
        page.write_text(LINK.sub(lambda link, place=place: _link(link, root, place, tree), text))
    for page in (tree / "notebooks").glob("*.ipynb"):
        _unpack_attachments(page)
    for name in api:
        (tree / "api").mkdir(exist_ok=True)
        (tree / "api" / f"{name}.md").write_text(API_PAGE.format(name=name))
    with (tree / "index.md").open("a") as index:
        index.write("".join(_contents(tree)))


def _unpack_attachments(page: Path) -> None:
    """Write pictures that a notebook's text has attached beside it: Sphinx reads none from a notebook."""
    notebook = nbformat.read(page, as_version=4)
    for cell in notebook.cells:
        for name, kinds in cell.pop("attachments", {}).items():
            copy = f"{page.stem}_{name}"
            (page.parent / copy).write_bytes(base64.b64decode(next(iter(kinds.values()))))
            cell.source = cell.source.replace(f"(attachment:{name})", f"({copy})")
    nbformat.write(notebook, page)


def _link(link: re.Match, root: Path, place: Path, tree: Path) -> str:
    """Return a link as the site has it: the README is the first page, folders have none, and files come along."""
    text, target, anchor = link.groups()
    path = (place / target).resolve()
    if "://" in target or root not in path.parents or not path.exists():
        return link[0]
    if path == root / "README.md":
        return f"[{text}]({os.path.relpath(root, place)}/index.md{anchor or ''})"
    if path.is_dir():
        return text
    copy = tree / path.relative_to(root)
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return link[0]


def _contents(tree: Path) -> list[str]:
    names = {path.stem for path in (tree / "docs").glob("*.md")}
    rest = sorted(names - {name for group in GROUPS.values() for name in group})
    groups = {"Without a kernel": ["recorded_runs"] if (tree / "recorded_runs.md").is_file() else []}
    groups["Notebooks"] = [f"notebooks/{path.stem}" for path in sorted((tree / "notebooks").glob("*.ipynb"))]
    for title, group in GROUPS.items():
        groups[title] = [f"docs/{name}" for name in group or rest if name in names]
    groups["API"] = [f"api/{path.stem}" for path in sorted((tree / "api").glob("*.md"))]
    pages = [
        page.relative_to(tree).with_suffix("")
        for page in sorted({*tree.glob("CONTRIBUTING.md"), *tree.glob("*/**/README.md"), *tree.glob("findings/*.md")})
    ]
    groups["More"] += [str(page) for page in pages]
    return [
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{chr(10).join(pages)}\n```\n"
        for title, pages in groups.items()
        if pages
    ]


def make_pages(tree: Path, pages: Path) -> None:
    """Have Sphinx make the pages, and follow their links.

    Raises
    ------
    SiteError
        If Sphinx warns of something, or a link leads nowhere.
    """
    shutil.rmtree(pages, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--keep-going", "--fail-on-warning", "--conf-dir", str(HERE)]
    command += ["--define", f"html_extra_path={tree / 'extra'}"] if (tree / "extra").is_dir() else []
    command += ["--doctree-dir", str(pages.with_name("doctrees")), str(tree), str(pages)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    faults = re.findall(r"^.*(?:WARNING|ERROR).*$", done.stdout, re.MULTILINE) or [done.stdout[-500:]]
    if done.returncode:
        raise SiteError(f"Sphinx finds {len(faults)} faults: {'; '.join(faults[:20])}")
    if broken := broken_links(pages):
        raise SiteError(f"{len(broken)} broken links: {'; '.join(broken[:20])}")


def main() -> int:
    """Run the command line; the exit code is 2 where there is no site, said in one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="execute notebooks with few samples, in some minutes")
    parser.add_argument("--kept", action="store_true", help="execute only notebooks that have changed since")
    options = parser.parse_args()
    notebooks = BUILD / "executed"
    try:
        for source in sorted((ROOT / "notebooks").glob("*.ipynb")):
            if not (options.kept and is_executed(source, notebooks / source.name)):
                say(f"executes {source.name}")
                execute(source, notebooks / source.name, options.quick)
        lay_out(ROOT, notebooks, BUILD / "source", API)
        make_pages(BUILD / "source", BUILD / "html")
    except BttlabError as error:
        say(error)
        return 2
    say(f"{BUILD / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
