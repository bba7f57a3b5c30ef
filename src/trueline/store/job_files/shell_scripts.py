"""Read the options that a shell script sets which starts a training: its variables are put in, and simple conditions
followed.

No shell runs. What only a shell can tell (arguments of the script, output of commands) stays as it is written.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_DECLARES = r"(?:export|(?:declare|typeset|local|readonly)(?:\s+-\w+)*)\s+"
_ARRAY = re.compile(rf"\s*(?:{_DECLARES})?\w+\+?=\(")
_WHOLE_ARRAY = re.compile(r'"\$\{(\w+\[@\])\}"')
"""An array of which each element is a word."""
_ASSIGNED = re.compile(
    rf"(?P<export>{_DECLARES})?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)",
    re.DOTALL,
)
_VARIABLE = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|\$(?P<bare>[A-Za-z_]\w*)"
    r"|\$\{(?P<place>\d+):?-(?P<given>[^{}]*)\}"
)
_SUM = re.compile(r"\$\(\((?P<sum>[^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
_PROGRAMS = frozenset(
    {"python", "python3", "torchrun", "deepspeed", "accelerate", "srun", "msrun", "mpirun", "mpiexec", "bash"}
)
_ENVIRONMENTS = frozenset({"uv", "poetry", "pixi", "pdm", "hatch", "conda", "mamba", "env", "nohup", "exec"})
"""Programs that start another one in an environment, with options of its own in front."""
_AHEAD = 8
"""Words of a command in which its program stands."""
_PROGRAM = re.compile(r"python[\d.]*|.*-cli|.*\.py")
_TEST = re.compile(r"(?P<first>\S*)\s+(?P<operator>==|=|!=|-eq|-ne|-gt|-ge|-lt|-le)\s+(?P<second>\S*)")
_HERE_DOCUMENT = re.compile(
    r"^[^\n]*?(?:\bread\s+(?:-\w+\s+|''\s+|\"\"\s+)*(?P<name>[A-Za-z_]\w*)\s*)?<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n"
    r"(?P<body>.*?)^\s*(?P=end)\b[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
_UNKNOWN_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}")
"""An array of another file, or of a shell."""
_MAX_PASSES = 20


@dataclass
class Script:
    """Variables, those of them that are exported, and the commands that start a program, as words."""

    variables: dict[str, str] = field(default_factory=dict[str, str])
    exported: dict[str, str] = field(default_factory=dict[str, str])
    commands: list[list[str]] = field(default_factory=list[list[str]])
    notes: list[str] = field(default_factory=list[str])


def read_script(text: str) -> Script:
    """Variables and commands of a shell script."""
    script = Script()
    skipping: list[bool] = []
    for line in _statements(text):
        word = line.split(maxsplit=1)[0]
        if word in ("if", "elif"):
            condition = line.removeprefix(word).strip()
            holds = _holds(_filled(condition, script.variables))
            if not any(skipping) and not condition.startswith(("[", "((", "test ")):
                # A program that is started, and asked how it ended.
                _take_statement(condition.removeprefix("!").strip(), script)
            if holds is None:
                script.notes.append(f"the condition '{line}' was taken to hold")
            if word == "if":
                skipping.append(holds is False)
            elif skipping:
                skipping[-1] = not skipping[-1] or holds is False
        elif word == "else" and skipping:
            skipping[-1] = not skipping[-1]
        elif word == "fi" and skipping:
            skipping.pop()
        elif not any(skipping):
            _take_statement(line, script)
    return script


def _statements(text: str) -> list[str]:
    """Commands and assignments, each whole, without comments."""
    uncommented = _HERE_DOCUMENT.sub(_assigned_document, "\n".join(map(_without_comment, text.splitlines())))
    joined = re.sub(r"\\\s*\n", " ", uncommented)
    joined = re.sub(r";\s*(then|do)\b", "\n", joined)
    joined = re.sub(r"(?m)(?:;\s*|^\s*)(else|fi|done)\b(?!=)", r"\n\1\n", joined)
    statements: list[str] = []
    open_text = ""
    for line in joined.splitlines():
        open_text = f"{open_text}\n{line}" if open_text else line
        if _is_open(open_text):
            continue
        whole = _ASSIGNED.match(open_text.strip()) or re.match(r"\s*(?:if|elif)\b", open_text)
        for part in [open_text] if whole else re.split(r";(?![^\[]*\]\])|&&", open_text):
            stripped = part.strip()
            if stripped and stripped not in ("then", "do", "done", "{", "}"):
                statements.append(stripped)
        open_text = ""
    return statements


def _assigned_document(match: re.Match[str]) -> str:
    """An assignment of a here document that a variable is read from; nothing of one that a program is given."""
    if match["name"] is None:
        return ""
    body = " ".join(line.rstrip().removesuffix("\\") for line in match["body"].splitlines())
    return f'{match["name"]}="{body}"' if '"' not in body else f"{match['name']}='{body}'"


def _without_comment(line: str) -> str:
    """The line up to a ``#`` that begins a comment: at its start, or after a space and outside of quotes."""
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at] + ("\\" if line.rstrip().endswith("\\") else "")
    return line


def _is_open(text: str) -> bool:
    """True if quotes or the parentheses of an array go on in the next line."""
    plain = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "", text)
    if plain.count('"') % 2 or plain.count("'") % 2:
        return True
    return bool(_ARRAY.match(plain)) and plain.count("(") > plain.count(")")


def _take_statement(line: str, script: Script) -> None:
    assignment = _ASSIGNED.fullmatch(line)
    if assignment is not None and not _starts_program(line, script.variables):
        value = assignment["value"].strip()
        if value.startswith("(") and value.endswith(")"):
            words = _words(_filled(value[1:-1], script.variables))
            value, whole = " ".join(words), f"{assignment['name']}[@]"
            before = script.variables.get(whole, "") if assignment["more"] else ""
            script.variables[whole] = f"{before} {shlex.join(words)}".strip()
        else:
            value = _filled(_unquoted(value), script.variables)
        before = script.variables.get(assignment["name"], "") if assignment["more"] else ""
        joined = f"{before} {value}".strip() if assignment["value"].strip().startswith("(") else before + value
        script.variables[assignment["name"]] = joined
        if assignment["export"]:
            script.exported[assignment["name"]] = joined
        return
    words = _words(_filled(line, script.variables))
    while words and (variable := re.fullmatch(r"([A-Za-z_]\w*)=(\S*)", words[0])):
        script.exported[variable[1]] = variable[2]
        words = words[1:]
    if words[:3] == ["ray", "job", "submit"]:  # its environment may hold words that look like a program's
        pairs = itertools.pairwise(words)
        begins = [number for number, (word, after) in enumerate(pairs, 1) if word == "--" and _is_program(after)]
        words = words[begins[0] :] if begins else words
    programs = [index for index, word in enumerate(words) if _is_program(word)]
    if programs and words[0] in _ENVIRONMENTS:
        script.commands.append(words[programs[0] :])  # options in front are of the environment that it runs in
    elif programs and programs[0] < _AHEAD:
        script.commands.append(words)


def _is_program(word: str) -> bool:
    return word.rsplit("/", 1)[-1] in _PROGRAMS or bool(_PROGRAM.fullmatch(word))


def _starts_program(line: str, variables: Mapping[str, str]) -> bool:
    """True if variables are set for one command only: ``A=1 torchrun …``."""
    words = _words(_filled(line, variables))
    rest = [word for word in words if not re.fullmatch(r"[A-Za-z_]\w*=\S*", word)]
    return "=(" not in line and bool(rest) and (rest[0] in _ENVIRONMENTS or _is_program(rest[0]))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def _unquoted(value: str) -> str:
    closed = len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]
    return value[1:-1].replace("\n", " ") if closed else value


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of variables that are known, and sums of numbers worked out."""
    text = _WHOLE_ARRAY.sub(lambda match: variables.get(match[1], match[0]), text)
    for _ in range(_MAX_PASSES):
        before = text
        text = _VARIABLE.sub(lambda match: _value(match, variables), text)
        text = _SUM.sub(_summed, re.sub(r"(?<=\$\(\()([^)]*)", lambda inner: _bare(inner[0], variables), text))
        if text == before:
            break
    return text


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match["braced"] or match["bare"]
    if name is None:
        return match["given"].strip("\"'")
    value = variables.get(name)
    if value is not None:
        return value
    return match["default"].strip("\"'") if match["default"] is not None else match[0]


def _bare(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), text)


def _summed(match: re.Match[str]) -> str:
    """The value of an arithmetic expansion of whole numbers, or what is written."""
    words = re.findall(r"\d+|[-+*/%()]|\S", match["sum"])
    if not words or not all(re.fullmatch(r"\d+|[-+*/%()]", word) for word in words):
        return match[0]
    value = _sum(words)
    return match[0] if value is None or words else str(value)


def _sum(words: list[str]) -> int | None:
    """The value of the sum at the start of ``words``, which it takes off."""
    value = _product(words)
    while value is not None and words and words[0] in "+-":
        sign = words.pop(0)
        term = _product(words)
        value = None if term is None else value + term if sign == "+" else value - term
    return value


def _product(words: list[str]) -> int | None:
    value = _factor(words)
    while value is not None and words and words[0] in "*/%":
        sign = words.pop(0)
        factor = _factor(words)
        if factor is None or (sign != "*" and factor == 0):
            return None
        value = value * factor if sign == "*" else value // factor if sign == "/" else value % factor
    return value


def _factor(words: list[str]) -> int | None:
    if not words:
        return None
    word = words.pop(0)
    if word == "(":
        value = _sum(words)
        return value if words and words.pop(0) == ")" else None
    return int(word) if word.isdigit() else None


def _holds(condition: str) -> bool | None:
    """True if a condition of ``[`` or ``[[`` holds; None where that takes a shell."""
    text = condition.strip().removesuffix(";").strip()
    parts = re.split(r"\]\]?\s*(\|\||&&)\s*\[\[?", text)
    results = [_holds_one(part) for part in parts[::2]]
    signs = parts[1::2]
    if "||" in signs and True in results:
        return True
    if "&&" in signs and False in results:
        return False
    return None if None in results else all(results) if "||" not in signs else any(results)


def _holds_one(text: str) -> bool | None:
    inner = text.strip().strip("[]").strip()
    if "$" in inner or "`" in inner:
        return None
    empty = re.fullmatch(r"(-[zn])\s*(.*)", inner)
    if empty:
        return (_unquoted(empty[2].strip()) == "") == (empty[1] == "-z")
    match = _TEST.fullmatch(inner)
    if match is None:
        return None
    first, second = _unquoted(match["first"]), _unquoted(match["second"])
    return _compared(first, match["operator"], second)


def _compared(first: str, operator: str, second: str) -> bool | None:
    if operator in ("==", "=", "!="):
        return (first == second) is (operator != "!=")
    if not (first.lstrip("-").isdigit() and second.lstrip("-").isdigit()):
        return None
    a, b = int(first), int(second)
    return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[operator]


def training_command(script: Script) -> Sequence[str]:
    """Of the commands of a script that with the most words: what else it starts is little. Of a script that only sets
    variables for another one, the options in these.
    """
    if script.commands:
        longest = max(script.commands, key=len)
        # it would be taken for a value of the option in front
        return [word for word in longest if not _UNKNOWN_ARRAY.fullmatch(word)]
    return [word for value in script.variables.values() if value.lstrip().startswith("--") for word in _words(value)]
