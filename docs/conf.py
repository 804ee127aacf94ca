"""The site that `make docs` builds from the pages in this folder."""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from chordcache import __version__

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "chordcache"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "generated_reference",
]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False

copybutton_prompt_text = "$ "  # of commands, whose output is not copied

autodoc_typehints = "none"  # the sections "Parameters" have the types
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "DistributedSampler, Dataset, Protocol, tuple, object, OSError, Exception",  # and not theirs
}
numpydoc_show_class_members = False
maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"chordcache {release}"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_search_scorer = str(Path(__file__).parent / "static/scorer.js")
html_show_copyright = False
html_copy_source = False


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to files outside of this folder to the pages that include them, and index the words of searches."""
    for name in ("SECURITY.md", "CHANGELOG.md"):
        source[0] = source[0].replace(f"(../{name})", f"({name.lower()})")
    source[0] = re.sub(r"<!-- search: (.*) -->", index_entries, source[0])


def index_entries(comment: re.Match[str]) -> str:
    """Return the directive for words of a page that people search for, which the search finds before all others."""
    return "```{index} " + ", ".join(f"!{words}" for words in comment[1].split(", ")) + "\n```"


def help_assistive_tools(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """State the level of headings in the menu, let the keyboard scroll code and tables, and mark up lists.

    Leave out the links from source code to the reference that lead nowhere.
    """
    if page.startswith("_modules/"):  # these links name all objects of a module as the first one is named
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])
    for part, old, new in (
        ("furo_navigation_tree", 'role="heading"', 'role="heading" aria-level="2"'),
        ("body", "<pre>", '<pre tabindex="0">'),
        ("body", '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
        ("body", '<th class="head"><p></p></th>', "<td></td>"),
        ("body", "<dl>\n<dd>", '<dl role="none">\n<dd>'),  # the parameters of a long signature are not definitions
    ):
        if part in context:
            context[part] = context[part].replace(old, new)


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", prepare)
    app.connect("html-page-context", help_assistive_tools, priority=900)  # after the theme, which makes the menu
