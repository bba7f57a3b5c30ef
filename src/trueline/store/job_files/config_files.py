"""What a configuration file sets, whatever framework it is of, as options: JSON, YAML, TOML and shell scripts.

A nested section is a prefix: ``{"optim": {"lr": 1}}`` is the option ``optim.lr``. Values that look secret are hidden.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trueline.schema.errors import InputError
from trueline.schema.text.documents import parsed
from trueline.schema.text.reading import shortened, why
from trueline.schema.text.secrets import redacted
from trueline.store.job_files.command_lines import options_of, plain_name, read_value
from trueline.store.job_files.shell_scripts import Script, read_script, training_command

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
SUFFIXES = (".json", ".yaml", ".yml", ".toml", *SCRIPTS)
MAX_BYTES = 2 * 2**20
"""A configuration is smaller; data and tokenizers are not."""
_MAX_DEPTH = 40
_ITSELF = "_self_"
"""Hydra's name, in a list of defaults, for the file that has the list."""
_MAX_REFERENCES = 8
"""Values that name one another, one behind the other."""
_REFERENCE = re.compile(r"\$\{(?P<name>\.?[\w.]+)\}")


def read_config(path: Path) -> dict[str, Any]:
    """The options that a file sets. Raises ``InputError`` where it cannot be read as what its name says."""
    return options_in(path, text_of(path))


def options_in(path: Path, text: str) -> dict[str, Any]:
    """The options that the ``text`` of a file sets, whose name says what it is. Raises ``InputError``."""
    if path.suffix in SCRIPTS:
        return options_of(training_command(read_script(text)))
    return _interpolated(_with_defaults(path, flat(nested(path, text)), {path.resolve()}))


def _with_defaults(path: Path, options: Mapping[str, Any], read: set[Path]) -> dict[str, Any]:
    """With what the files below ``defaults`` set (Hydra, NeMo-RL) where they stand beside ``path``, which holds against
    them. Each is read once, as they may name one another. ``defaults`` has those that are not there.
    """
    stated = options.get("defaults")
    names = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    merged: dict[str, Any] = {}
    absent: list[str] = []
    for name in map(str, cast(Sequence[Any], names)):
        base = path.parent / (name if name.endswith(SUFFIXES) else f"{name}.yaml")
        if not base.is_file():
            absent += [name] if name != _ITSELF else []
        elif base.resolve() not in read:
            read.add(base.resolve())
            merged |= _with_defaults(base, flat(nested(base, text_of(base))), read)
    # a section that is set to nothing is not inherited
    nothing = tuple(f"{option}." for option, value in options.items() if value is None)
    inherited = {option: value for option, value in merged.items() if not option.startswith(nothing)}
    own = {option: value for option, value in options.items() if option != "defaults" or not names}
    absent += cast(list[str], inherited.pop("defaults", []))
    return inherited | own | ({"defaults": absent} if absent else {})


def _interpolated(options: Mapping[str, Any]) -> dict[str, Any]:
    """With each value ``${a.b}`` (OmegaConf) replaced by that of the option it names, if that is there."""

    def value_of(option: str, depth: int) -> Any:
        value = options[option]
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or not depth:
            return value
        section = option.rpartition(".")[0]
        named = f"{section}{match['name']}".removeprefix(".") if match["name"].startswith(".") else match["name"]
        return value_of(named, depth - 1) if named in options else value

    return {option: value_of(option, _MAX_REFERENCES) for option in options}


def exported_by(path: Path) -> dict[str, str]:
    """The variables that a shell script exports; none of another file."""
    script = read_script(text_of(path)) if path.suffix in SCRIPTS else Script()
    return script.exported


def text_of(path: Path) -> str:
    """The text of a file. Raises ``InputError``."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"'{shortened(str(path))}' has {path.stat().st_size:,} bytes; a configuration has at most "
                f"{MAX_BYTES:,}. Pass the file that sets the options of the job."
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{shortened(str(path))}' cannot be read: {why(error)}. Pass a text file.") from None


def nested(path: Path, text: str) -> Mapping[str, Any]:
    """The object that a JSON, YAML or TOML file holds. Raises ``InputError``."""
    kind = {".json": "JSON", ".toml": "TOML"}.get(path.suffix, "YAML")
    try:
        content = parsed(text) if kind == "JSON" else tomllib.loads(text) if kind == "TOML" else _yaml(text)
    except (ValueError, RecursionError) as error:
        problem = f"it is no {kind} ({why(error)})"
        raise InputError(
            f"Configuration '{shortened(str(path))}' cannot be read: {problem}. Correct the file."
        ) from None
    if not isinstance(content, Mapping):
        raise InputError(
            f"Configuration '{shortened(str(path))}' holds a {type(content).__name__}, expected named options. Pass "
            "the file that sets the options of the job."
        )
    return cast(Mapping[str, Any], content)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(
            "YAML needs PyYAML, which is not installed. Install it with pip install 'trueline[yaml]'."
        ) from None
    try:
        return yaml.load(text, Loader=_lenient(yaml))
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def _lenient(yaml: Any) -> Any:
    """PyYAML's safe loader, to which a tag that it does not know (``!!python/tuple``, ``!include``) is no error."""

    class Lenient(yaml.SafeLoader):
        pass

    def plain(loader: Any, tag: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_scalar(node)

    Lenient.add_multi_constructor("", plain)
    return Lenient


def flat(content: Any) -> dict[str, Any]:
    """Nested options as one level, ``a.b`` and ``list.0.b``; lists of plain values stay, but for pairs of numbers
    (betas), which are taken apart as well.
    """
    return dict(_flat(redacted(_plain(content)), "", 0))


def _plain(content: Any) -> Any:
    """With names as texts, and tuples as lists."""
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in cast(Mapping[Any, Any], content).items()}
    if isinstance(content, list | tuple):
        return [_plain(item) for item in cast(list[Any], content)]
    return content if isinstance(content, str | int | float | bool | None) else str(content)


def _flat(content: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping) and depth < _MAX_DEPTH:
        for key, value in cast(Mapping[str, Any], content).items():
            yield from _flat(value, f"{prefix}.{plain_name(key)}" if prefix else plain_name(key), depth + 1)
        return
    if isinstance(content, list) and depth < _MAX_DEPTH:
        items = cast(list[Any], content)
        pair = len(items) == 2 and all(isinstance(item, int | float) for item in items)
        if pair or any(isinstance(item, Mapping | list) for item in items):
            for index, item in enumerate(items):
                yield from _flat(item, f"{prefix}.{index}", depth + 1)
            return
        yield prefix, [read_value(item) for item in items]
        return
    yield prefix, read_value(content)
