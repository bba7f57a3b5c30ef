"""Removes secrets from command lines, environments and paths before they are written to a Run.

Of the environment, variables that may influence numbers or communication (a list) are recorded, and of all others only
their number. Credentials of URLs, tokens of known forms, and values of options and keys with secret names are replaced.
In sentences, where a name says less ("tokens: backward"), a value is replaced only if it looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

HIDDEN = "<redacted>"

FAMILIES: tuple[str, ...] = (
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_TF32_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_"),
    *(
        "PYTORCH_",
        "ATEN_",
        "TRITON_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "ONEDNN_",
        "DNNL_",
        "GLOO_",
        "UCC_",
    ),
    *("UCX_", "FI_", "CCL_", "HCCL_", "ASCEND_", "NPU_", "ACL_", "XLA_", "PJRT_", "TPU_", "NEURON_", "PT_HPU_"),
    *("ROCR_", "HSA_", "HIP_", "HIPBLAS_", "HIPBLASLT_", "ROCBLAS_", "MIOPEN_", "RCCL_", "AMD_", "NVTE_", "DEEPSPEED_"),
    *("ACCELERATE_", "FSDP_", "MEGATRON_", "FLASH_ATTENTION_", "FLASH_ATTN_", "XFORMERS_", "BNB_", "VLLM_", "SGLANG_"),
)
"""Beginnings of names: libraries that compute, exchange, or choose kernels and precision by their variables."""

NAMES: frozenset[str] = frozenset({
    "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "PYTHONHASHSEED",
    "TORCHELASTIC_MAX_RESTARTS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE", "LD_PRELOAD", "MALLOC_CONF", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES",
    "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_RESTART_COUNT",
    "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "CLOSE_MATMUL_K_SHIFT", "TASK_QUEUE_ENABLE",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
})  # fmt: skip

_ALWAYS = (
    r"pass_?(?:word|wd|phrase|code|key)s?|pwd|pw|psw|psk|secrets?|credentials?|creds|api[_-]?keys?|access[_-]?keys?|private[_-]?keys?"
    r"|secret[_-]?keys?|account[_-]?keys?|auth[_-]?tokens?|access[_-]?tokens?|bearer|cookies?|dsn|webhooks?|jwt"
    r"|connection[_-]?string|x-amz-(?:signature|credential|security-token)"
)
"""Ends of names whose values are secret whatever they look like."""
_SHORT = r"pins?|log_?ins?|otp|totp|mfa"
"""Ends of names whose values are, but for switches, counts and paths: ``pin`` memory, ``bash --login x.sh``."""
_OFTEN = r"tokens?|keys?|auth|authorization|pass|session|license|sig|signature"
"""Ends of names whose values are, but for numbers and ``<pad>``, and where the word before is of text or of data."""
_OF_DATA = frozenset({
    "pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "audio", "special", "start", "end", "stop", "first",
    "last", "new", "next", "max", "min", "num", "per", "total", "text", "input", "output", "label", "prompt", "query",
    "question", "answer", "response", "chosen", "rejected", "target", "data", "batch", "column", "message", "messages",
    "metric", "best", "primary", "sort", "group", "state", "conversation", "context", "document", "sample", "feature",
    "index", "cache", "add",
})  # fmt: skip
"""Words in front of one of those: ``pad_token``, ``text_key``."""

_ENDING = re.compile(r"(?:_?\d+|_(?:value|str|text|b64|base64|plain|raw|old|new|env))+$")
"""What may stand behind the end of such a name: ``password2``, ``token_value``."""
_SWITCH = re.compile(r"true|false|none|null|yes|no|on|off|\d{0,2}", re.IGNORECASE)
_PRECISION = re.compile(r"(?:bf|fp|tf|nf|u?int|float|amp)_?\d+\w*(?:-\w+)?|\d+-\w+", re.IGNORECASE)
_PATH = re.compile(r"[/\\:]|\.\w+$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_GLUED = re.compile(
    r"(?:api|hf|my|auth|access|wandb|hub|user|db|openai|github|gitlab|git|aws|s3)(?:token|key|pass|pwd)$"
)
_HARMLESS = re.compile(r"[+-]?[\d.,_e-]{1,7}|true|false|none|null|yes|no|<[^<>]+>|\[\w+\]|", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9!@#$%^&*?~+]{8,}")
"""A value of a variable that is no setting of one."""
_IS_PROSE = re.compile(
    r"(?:not?|none|never|empty|missing|required|needed|asked|set|unset|wrong|invalid|a|the|for|in)[.,;]?"
)
_PLAIN = re.compile(r"[A-Za-z]?[^A-Z\d]*")
_RANDOM_PARTS = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])"
    r"(?:[a-z0-9]{12,}|[A-Z0-9]{12,}|(?=[A-Za-z]*(?:\d+[A-Za-z]+){2})[A-Za-z0-9]{8,})(?![A-Za-z0-9])"
)
"""Generated text: letters and digits that alternate, or a dozen of them in one case."""

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.\-]*://)(?:[^\s'\"<>/?#]*@|[^\s'\"<>/?#@:]+:(?!\d+/)[^\s'\"<>@]*@)", re.IGNORECASE
)
_USER = re.compile(r"(?<![\w./\-])(?P<user>[\w.\-]+):(?!//)[^\s'\"`<>/@:]+@(?=[\w\-]+(\.[\w\-]+|:\d))")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|(?:sk|pk|rk)[-_](?=[\w\-]*\d)[\w\-]{16,}|(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|gl[a-z]{2,4}-[\w\-]{16,}|xox[a-z]-[\w\-]{10,}|AIza[\w\-]{30,}"
    r"|ya29\.[\w\-]{10,}|nvapi-[\w\-]{16,}|r8_\w{16,}|pypi-[\w\-]{16,}|npm_\w{16,}|dckr_pat_[\w\-]{16,}|dop_v1_\w{16,}"
    r"|eyJ[\w\-]{8,}\.[\w\-]{8,}(?:\.[\w\-]*)?)"
)
_HEADER = re.compile(r"(?P<name>\b(?:bearer|basic|token))(?P<sign>\s+)(?P<value>[\w+/.=~\-]{8,})", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"(?P<kind>authorization\s*[:=]\s*(?:bearer|basic|token))\s+[^\s'\"]+", re.IGNORECASE)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL)
_VALUE = r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s'\"&;,{}\[\]]+)"
_PAIRS = tuple(
    re.compile(
        rf"(?<![\w.\-])(?P<name>[\w.\-]*(?i:{_ALWAYS}|{_SHORT}|{_OFTEN})(?:_?\d+|_(?:value|str|text|b64|base64|plain|raw|old|new|env))*)(?P<sign>[\"']?\s*{sign}\s*){_VALUE}"
    )
    for sign in (r":(?!//)", "=")
)
_SPACED = re.compile(
    r"(?P<name>--?[A-Za-z][\w.\-]*)(?P<sign>\s+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s'\"&;,\-][^\s'\"&;,]*)"
)
_WITH_USER = frozenset({"-u", "--user", "--userpwd", "--proxy-user"})
_USER_KEYS = frozenset(option.lstrip("-").replace("-", "_") for option in _WITH_USER)
_WITH_P = frozenset({"sshpass", "mysql", "mysqldump", "mariadb", "smbclient", "redis-cli"})
_P_IS_PLACE = frozenset({"srun", "sbatch", "salloc", "mkdir", "conda", "mamba", "tmux"})
"""To these ``-p`` is a partition, or a place."""
_AS_USER = re.compile(
    r"(?P<front>(?<!\S)(?:-u\s*|--(?:user|userpwd|proxy-user)[= ]\s*)[\"']?[\w.@\-]+):(?!//)(?P<value>[^\s'\":]+)"
)
_AFTER_P = re.compile(r"(?P<front>(?<!\S)-p(?P<gap>\s*))(?P<value>[^\s'\"\-][^\s'\"]*)")
_NAMED_SECRET = re.compile(
    rf"(?P<name>(?<![\w.\-])[\w.\-]*(?i:{_ALWAYS}|{_SHORT}|{_OFTEN}))(?P<sign>\s+(?:(?:is|was|be|to|of|for|->|=>)\s+)?){_VALUE}"
)
"""Said in free text: ``the password is x``, ``log in with pw x``."""
_LEAST_BARE, _BARE_CHANGES = 20, 0.5
"""A word that stands for itself is taken for a secret from so many letters and digits on, where the kind of character
(upper, lower, digit) changes at such a share of them: 0.62 of drawn ones, a third of names such as
``DeepseekV3ForCausalLM``."""
_BARE = re.compile(rf"(?<![A-Za-z0-9_/.=+\-])[A-Za-z0-9]{{{_LEAST_BARE},}}(?![A-Za-z0-9_/.=+\-])")

_LITERAL = re.compile(rf"(?P<front>(?i:{_ALWAYS})\w*[\"']?\]?\s*(?:[:=]|,)\s*)[rbf]?(?:\"[^\"]+\"|'[^']+')")
"""In source code: ``password = "x"``, ``{"password": "x"}``, ``environ["API_KEY"] = "x"``."""
_MAY_BE_SECRET = re.compile(rf"(?i:{_ALWAYS}|{_SHORT}|{_OFTEN}|basic|pat_)|[@:-]\S*\w{{6}}|\w{{16}}")


def sorted_out(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str], int]:
    """The variables to record, sorted; the names of those that look secret; how many others are left out."""
    recorded: dict[str, str] = {}
    secret: list[str] = []
    num_others = 0
    for name, value in sorted(environ.items()):
        if _is_secret(name, value):
            secret.append(name)
        elif name.upper() in NAMES or name.upper().startswith(FAMILIES):
            recorded[name] = HIDDEN if _RANDOM.fullmatch(value) else redacted_text(value)
        else:
            num_others += 1
    return recorded, secret, num_others


def redacted_words(words: Sequence[str]) -> list[str]:
    """The words of a command without secrets."""
    redacted_list: list[str] = []
    program = words[0].rsplit("/", 1)[-1] if words else ""
    for number, word in enumerate(words):
        option = words[number - 1] if number else ""
        user = re.fullmatch(r"(-u|--(?:user|userpwd|proxy-user)=)([\w.@\-]+):(?!//)(.+)", word)
        if option.startswith("-") and not word.startswith("--") and _belongs(option, word, program):
            redacted_list.append(HIDDEN)
        elif option in _WITH_USER and ":" in word:
            redacted_list.append(f"{word.partition(':')[0]}:{HIDDEN}")
        elif user is not None:
            redacted_list.append(f"{user[1]}{user[2]}:{HIDDEN}")
        else:
            program = word.rsplit("/", 1)[-1] if word.rsplit("/", 1)[-1] in _WITH_P | _P_IS_PLACE else program
            joined = program in _WITH_P and re.fullmatch(r"-p.+", word)
            redacted_list.append(f"-p{HIDDEN}" if joined else redacted_text(word))
    return redacted_list


def redacted(value: Any) -> Any:
    """Plain values without secrets: texts, and what stands under keys whose names say so, however deep."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {key: _redacted_under(key, item_value) for key, item_value in items}
    if not isinstance(value, list):
        return value
    items = cast(list[Any], value)
    if all(isinstance(item, str) for item in items) and any(item.startswith("-") for item in items):
        return redacted_words(items)
    return [redacted(item) for item in items]


def _redacted_under(key: str, value: Any) -> Any:
    """What stands under a key, as an option of this name would have it."""
    if isinstance(value, Mapping | list) and _ends_in(key, _ALWAYS):
        return _hidden(cast(Any, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return redacted(value)
    text = str(value)
    if key in _USER_KEYS and re.fullmatch(r"[\w.@\-]+:(?!//).+", text):
        return f"{text.partition(':')[0]}:{HIDDEN}"
    return HIDDEN if _is_secret(key, text) or (key == "p" and _is_random(text)) else redacted(value)


def _hidden(value: Any) -> Any:
    """A value, however deep, of which no text is shown."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list):
        return [_hidden(item) for item in cast(list[Any], value)]
    return value if value is None or isinstance(value, bool) else HIDDEN


def redacted_notes(notes: list[str]) -> list[str]:
    """Sentences without secrets."""
    return [redacted_text(note, is_prose=True) for note in notes]


def redacted_text(text: str, *, is_prose: bool = False) -> str:
    """A text (of a command, or prose) without credentials of URLs, tokens of known forms, and values of names that are
    secret.
    """
    text = _PRIVATE.sub(HIDDEN, without_credentials(text))
    text = _AUTHORIZATION.sub(rf"\g<kind> {HIDDEN}", text)
    text = _TOKEN.sub(HIDDEN, text)
    for pattern in (_HEADER, *_PAIRS, _SPACED):
        text = pattern.sub(partial(_hide, is_prose=is_prose or pattern is _HEADER), text)
    text = _NAMED_SECRET.sub(partial(_hide_told, is_prose=is_prose), text)
    if is_prose:
        return text
    text = _AFTER_P.sub(_hide_after_p, _AS_USER.sub(rf"\g<front>:{HIDDEN}", text))
    return _BARE.sub(lambda match: HIDDEN if _is_drawn(match[0]) else match[0], text)


def redacted_source(text: str) -> str:
    """Source code without what looks secret: as prose, where names say little, but for literals that are given to names
    of passwords and the like, and words that look drawn. Of a file with a private key nothing is left.
    """
    if "PRIVATE KEY-----" in text:
        return HIDDEN
    # looking for secrets takes 4 ms of CPU a kB, and most lines have nothing that could be one
    return "\n".join(_redacted_line(line) if _MAY_BE_SECRET.search(line) else line for line in text.splitlines())


def _redacted_line(line: str) -> str:
    line = _LITERAL.sub(rf"\g<front>{HIDDEN}", redacted_text(line, is_prose=True))
    return _BARE.sub(lambda match: HIDDEN if _is_drawn(match[0]) else match[0], line)


def without_credentials(text: str) -> str:
    """A text whose URLs have no user and password."""
    if "@" not in text:
        return text
    return _USER.sub(rf"\g<user>:{HIDDEN}@", _URL.sub(rf"\g<scheme>{HIDDEN}@", text))


def _hide(match: re.Match[str], *, is_prose: bool) -> str:
    name, sign, value = match["name"].lstrip("-"), match["sign"], match["value"].strip("'\"")
    is_query = match.string[match.start() - 1 : match.start()] in ("?", "&")
    is_quoted = sign[0] in "\"'" or match["value"] != value
    is_said = not is_quoted and (sign.strip() == ":" or (sign.strip() != sign and (is_prose or "=" in sign)))
    if _ends_in(name, _ALWAYS):
        secret = not (is_prose and is_said and _PLAIN.fullmatch(value))
    else:
        secret = _is_secret(name, value) and (is_query or not (is_prose or is_said) or _is_made(value))
    return f"{match['name']}{sign}{HIDDEN}" if secret and value and HIDDEN not in value else match[0]


def _hide_told(match: re.Match[str], *, is_prose: bool) -> str:
    """Of free text: what follows the name of a secret, where that is said or the value is no word."""
    value, is_said = match["value"].strip("'\""), bool(match["sign"].strip())
    always = _ends_in(match["name"], _ALWAYS)
    if not always:
        secret = _is_made(value)
    elif is_said and not is_prose:
        secret = _IS_PROSE.fullmatch(value) is None
    else:
        secret = _is_random(value)
    hides = secret and HIDDEN not in match[0] and not match["name"].startswith("-")
    return f"{match['name']}{match['sign']}{HIDDEN}" if hides else match[0]


def _hide_after_p(match: re.Match[str]) -> str:
    programs = {word.rsplit("/", 1)[-1] for word in match.string[: match.start()].split()}
    secret = bool(programs & _WITH_P) or (
        bool(match["gap"]) and not programs & _P_IS_PLACE and _is_random(match["value"])
    )
    return f"{match['front']}{HIDDEN}" if secret and HIDDEN not in match["value"] else match[0]


def _belongs(option: str, word: str, program: str) -> bool:
    """Whether a word is the secret value of the option in front of it."""
    if "=" in option or (word.startswith("-") and len(word) < 8):
        return False
    if option == "-p":
        return program in _WITH_P or (program not in _P_IS_PLACE and _is_random(word))
    return _is_secret(option.lstrip("-"), word)


def _plain(name: str) -> str:
    """``hfApi-Key`` as ``hf_api_key``."""
    return "_".join(part for part in re.split(r"[._\-/ ]+", _CAMEL.sub("_", name)) if part).lower()


def _is_secret(name: str, value: str) -> bool:
    """Whether a value under this name is secret, by the end of the name; of several tokens or keys by itself, too."""
    plain = _plain(name)
    if not value:
        return False
    if _ends_in(name, _ALWAYS) or _GLUED.search(plain):
        return True
    if _ends_in(name, _SHORT):
        return _SWITCH.fullmatch(value) is None and re.search(r"\.\w+$", value) is None
    if (ending := _ENDING.sub("", plain)) != plain and re.search(rf"(?:^|_)(?:{_OFTEN})$", ending):
        return _is_made(value)
    *before, last = plain.split("_")
    if not re.fullmatch(_OFTEN, last) or (before and before[-1] in _OF_DATA):
        return False
    return _is_made(value) if last in ("tokens", "keys") else _HARMLESS.fullmatch(value) is None


def _is_made(value: str) -> bool:
    """Whether part of it is no word, no number and no name."""
    return _RANDOM_PARTS.search(value) is not None


def _ends_in(name: str, ends: str) -> bool:
    """Whether a name, without a number and the like behind it, ends in one of these words."""
    plain = _plain(name)
    return any(re.search(rf"(?:^|_)(?:{ends})$", candidate) for candidate in (plain, _ENDING.sub("", plain)))


def _is_random(word: str) -> bool:
    """Whether a word looks like a password, and not like a port, a path, a precision or a name."""
    kinds = (any(map(str.isalpha, word)), any(map(str.isdigit, word)), re.search(r"[!@#$%^&*?~+]", word) is not None)
    return len(word) >= 6 and sum(kinds) > 1 and not _PATH.search(word) and not _PRECISION.fullmatch(word)


def _is_drawn(word: str) -> bool:
    """Whether letters and digits of a word were drawn, by how often their kind changes."""
    kinds = ["".join(map(str, (letter.islower(), letter.isdigit()))) for letter in word]
    changes = sum(kind != next_kind for kind, next_kind in pairwise(kinds))
    return len(set(kinds)) == 3 and changes > _BARE_CHANGES * (len(word) - 1)
