"""Code lines of a folder's modules, without blanks, comments and docstrings: `python tools/code_lines.py lib`."""

import ast
import io
import sys
import tokenize
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def count(source: str) -> int:
    """Code lines of a module's text."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def of_folder(folder: Path) -> dict[Path, int]:
    """Code lines by module."""
    return {path: count(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


if __name__ == "__main__":
    counted = of_folder(Path(sys.argv[1]))
    for path, number in counted.items():
        print(f"{number:6} {path}")
    print(f"{sum(counted.values()):6} in all")
