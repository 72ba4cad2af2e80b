"""What the pages let a reader type: blocks of a shell, and `molink ...` between backticks."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "windows" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
CALL = re.compile(r"^(?:export \w+=\"\$\()?(?:\S*/)?molink ([a-z-].*)$")
END = re.compile(r" (?:[|>&;#]|   ).*$|   .*$|\)\"$")

PROGRAMS = (
    r"molink|curl|python3?|pip|make|sh|docker|kubectl|export|umask|openssl|git|powershell|sudo"
)
TYPED_IN_A_SHELL = re.compile(rf"^(?:\S*/)?(?:{PROGRAMS}) ")


def code_blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language, empty where none is named, and text of each block, in their order."""
    found = [(match.start(), match[1], match[2]) for match in FENCE.finditer(page)]
    blank = FENCE.sub(lambda match: "\n" * len(match[0]), page)
    found += [(match.start(), "", match[0]) for match in INDENTED.finditer(blank)]
    yield from ((language, text) for _, language, text in sorted(found))


def shell_lines(page: str) -> Iterator[str]:
    """Each line of each block that is typed in a shell, without its comment."""
    for language, block in code_blocks(page):
        if is_shell(language, block):
            yield from joined(block)


def is_shell(language: str, block: str) -> bool:
    """Whether it begins with a program's name and is marked as nothing else."""
    return not language and TYPED_IN_A_SHELL.match(block.strip()) is not None


def joined(block: str) -> list[str]:
    """Its lines without comments and empty ones; a backslash at the end joins the next one."""
    lines = re.sub(r" *\\\n *", " ", block).splitlines()
    lines = [re.sub(r"\s{2,}#.*", "", line).strip() for line in lines]
    return [line for line in lines if line]


def typed_lines(page: str) -> Iterator[str]:
    """What stands behind the word molink in each line of a block that begins with it."""
    for _, block in code_blocks(page):
        for line in joined(block):
            if found := CALL.match(line.rpartition(" -- ")[2]):
                yield " ".join(END.sub("", found[1]).split())


def mentions(page: str) -> Iterator[str]:
    """What stands behind the word molink between backticks; often without what must follow."""
    for span in SPAN.findall(FENCE.sub("", page)):
        if found := CALL.match(" ".join(span.split())):
            yield found[1]


def of_all_pages(find: Callable[[str], Iterator[str]]) -> list[tuple[str, str]]:
    """What is found, each once, with the name of a page that has it."""
    pages = {line: page.name for page in PAGES for line in find(page.read_text(encoding="utf-8"))}
    return sorted(pages.items())
