"""What can be the name of a stream, a table or a query.

Names become names of files and folders of a checkpoint, of results, and of queries in Spark. So a name holds nothing that
means something in a path, on any filesystem, and no two names differ only in what some filesystems do not tell apart (case,
and how a letter is composed of its accents). What is not in a name (`@` and the dot, say) can set parts of a file's name
apart.
"""

from __future__ import annotations

import unicodedata

LONGEST_NAME_BYTES = 120
"""In UTF-8. File names have up to 255 bytes on most filesystems; what stands around a name takes fewer than 100."""

NAME_RULE = (
    f"a name has letters and digits of any alphabet, _, - and single spaces, begins and ends with a letter, a digit or _, "
    f"and takes at most {LONGEST_NAME_BYTES} bytes in UTF-8"
)


def why_not_a_name(name: str) -> str | None:
    """What is wrong with a name; None: nothing.

    >>> why_not_a_name("größte trades-2"), why_not_a_name("../x"), why_not_a_name("")
    (None, "'../x' cannot be a name: it holds '.'", 'a name cannot be empty')
    """
    if not name:
        return "a name cannot be empty"
    if bad := next((c for c in name if not _is_word(c) and c not in "- "), None):
        return f"{_shown(name)} cannot be a name: it holds {_shown(bad)}"
    if not (_is_word(name[0]) and _is_word(name[-1])):
        odd = name[0] if not _is_word(name[0]) else name[-1]
        return f"{_shown(name)} cannot be a name: it begins or ends with {_shown(odd)}"
    if "  " in name:
        return f"{_shown(name)} cannot be a name: it holds two spaces together"
    if len(name.encode("utf-8")) > LONGEST_NAME_BYTES:
        return f"{_shown(name)} cannot be a name: it takes {len(name.encode('utf-8'))} bytes in UTF-8"
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        return f"{_shown(name)} cannot be a name: some of its letters are decomposed; composed they are {composed!r}"
    return None


def same_name(one: str, other: str) -> bool:
    """Whether two names are taken for one: case does not tell them apart.

    >>> same_name("Trades", "trades"), same_name("trades", "trades-2")
    (True, False)
    """
    return one.lower() == other.lower()


def _is_word(char: str) -> bool:
    """A letter, an accent that belongs to one, a digit, or _."""
    return char == "_" or unicodedata.category(char) in ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd")


def _shown(text: str) -> str:
    """In quotes, with a code for each character that does not print, cut if it is long."""
    return repr(text if len(text) <= 60 else text[:59] + "…")
