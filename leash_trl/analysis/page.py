"""A page of tables and figures, written as HTML or Markdown, whatever its content."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from leash_trl import __version__
from leash_trl.evaluation.numbers import markdown_table
from leash_trl.figures import NARROW, inline_svg


LONG_TEXT = 800  # characters


@dataclass(frozen=True)
class Table:
    """A table of text; its first column names the rows.

    Args:
        caption (`str`):
            Text below the table.
        head (`Sequence[str]`):
            Headings of its columns.
        rows (`Sequence[Sequence[str]]`):
            Cells, as many per row as there are headings; empty where a number does not exist.
    """

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """The table in Markdown, its caption below it."""
        head, *rows = [[escape_markdown(cell) for cell in row] for row in (self.head, *self.rows)]
        return f"{markdown_table(head, rows)}\n\n{escape_markdown(self.caption)}"


@dataclass(frozen=True)
class Picture:
    """A figure with its words.

    Args:
        name (`str`):
            Name of its file, unique on the page: letters, digits and hyphens.
        caption (`str`):
            Text below the figure.
        description (`str`):
            Text for those who cannot see it.
        figure (`Figure`):
            The figure.
    """

    kind: ClassVar[str] = "picture"
    name: str
    caption: str
    description: str
    figure: Figure

    @property
    def is_wide(self) -> bool:
        """Whether its words would be too small when scaled to a phone, so that it scrolls instead."""
        return bool(self.figure.get_figwidth() > NARROW)

    @property
    def svg(self) -> Markup:
        """The figure as part of a page; matplotlib has escaped the labels in it."""
        return Markup(inline_svg(self.figure, self.name, self.description))


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Completion:
    """A completion to show.

    Args:
        head (`str`):
            Its run and its grade.
        text (`str`):
            Its text.
    """

    head: str
    text: str

    @property
    def is_long(self) -> bool:
        """Whether to fold it, because it is long."""
        return len(self.text) > LONG_TEXT


@dataclass(frozen=True)
class SideBySide:
    """Completions to compare: beside each other if there is room, else below each other.

    Args:
        title (`str`):
            Common title.
        completions (`Sequence[Completion]`):
            The completions.
    """

    kind: ClassVar[str] = "side_by_side"
    title: str
    completions: Sequence[Completion]


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading.

    Args:
        title (`str`):
            Its heading.
        blocks (`Sequence[Table | Picture | Paragraph | SideBySide]`):
            Its content, in order.
        headline (`Sequence[str]`, *optional*):
            Sentences for the top of the page.
    """

    title: str
    blocks: Sequence[Table | Picture | Paragraph | SideBySide]
    headline: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page.

    Args:
        title (`str`):
            Its title.
        sections (`Sequence[Section]`):
            Its parts.
    """

    title: str
    sections: Sequence[Section]

    @property
    def headline(self) -> list[str]:
        """The headlines of its sections, for the top of the page."""
        return [sentence for section in self.sections for sentence in section.headline]

    @property
    def pictures(self) -> list[Picture]:
        """All figures in their order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def to_html(page: Page) -> str:
    """The page as one HTML file that contains style and figures and needs no scripts."""
    return _environment(autoescape=True).get_template("report.html.j2").render(page=page, version=__version__)


def to_markdown(page: Page, figure_folder: str) -> str:
    """The page as Markdown that shows the figures from SVG files.

    Args:
        page (`Page`):
            The page.
        figure_folder (`str`):
            Folder with `NAME.svg` for each figure, as seen from the Markdown file.
    """
    template = _environment(autoescape=False).get_template("report.md.j2")
    return template.render(page=page, version=__version__, figure_folder=figure_folder)


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": escape_markdown, "whole_interval": whole_interval, "breakable": breakable}
    return environment


def breakable(name: str) -> Markup:
    """A name as HTML that a narrow column breaks at an underscore, not inside a word.

    Example:
        >>> str(breakable("<top_p>"))
        '&lt;top_<wbr>p&gt;'
    """
    return escape(name).replace("_", Markup("_<wbr>"))


def whole_interval(text: str) -> str:
    r"""A cell whose interval stays on one line if the cell breaks into two.

    Example:
        >>> whole_interval("-49.8 [-52.2, -47.3]")
        '-49.8 [-52.2,\xa0-47.3]'
    """
    return re.sub(r"\[[^\[\]]*\]", lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is: no tag, no link, no emphasis, no new cell, no new line.

    Example:
        >>> escape_markdown("<b> | [x](y)\n*z* [1.0, 2.0]")
        '&lt;b&gt; \\| [x]\\(y) \\*z\\* [1.0, 2.0]'
    """
    text = " ".join(text.split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
    return re.sub(r"([|*`])", r"\\\1", text)
