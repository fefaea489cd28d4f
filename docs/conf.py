"""Sphinx's settings for the documentation site (`make docs`)."""

project = "Synergy"
project_copyright = "the Synergy maintainers"
extensions = ["myst_parser"]
exclude_patterns = ["man"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Synergy"
html_copy_source = False
