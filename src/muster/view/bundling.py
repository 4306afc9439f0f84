"""The page's modules as one script: asked for once, where two dozen would be asked for level by level."""

import re

_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./([\w.]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


def one_script(files: dict[str, str], start: str) -> str:
    """A module and all that it imports as one: each in a function of its own, after those that it imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = files[name]
        done[name] = ""
        for _, imported in _IMPORT.findall(text):
            add(imported)
        names = ", ".join(_EXPORTED.findall(text))
        inside = _EXPORT.sub("", _IMPORT.sub(r'const \1 = modules["\2"];\n', text))
        done.pop(name)
        done[name] = f'modules["{name}"] = (() => {{\n{inside}\nreturn {{ {names} }};\n}})();\n'

    add(start)
    return '"use strict";\nconst modules = {};\n' + "".join(done.values())
