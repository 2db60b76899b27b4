"""The Sphinx configuration of the documentation site. `build.py` stages the pages and calls Sphinx."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

project = "topics"
copyright = "the authors of topics, Apache License 2.0"
version = release = re.findall(r'RELEASE = "([^"]+)"', (ROOT / "src/topics/__init__.py").read_text())[0]

extensions = ["myst_parser"]
# Anchors of headings are those of code hosts, so that one link works in both places.
myst_heading_anchors = 4
exclude_patterns: list[str] = []
# Blocks with `…` in JSON are shown without colours; that is no error of the page.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"

html_theme = "furo"
html_title = f"topics {version}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1f6f54", "color-brand-content": "#1f6f54"},
    "dark_css_variables": {"color-brand-primary": "#6fcfae", "color-brand-content": "#6fcfae"},
}
