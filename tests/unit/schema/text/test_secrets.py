"""What looks like a secret never enters a Run, nor what is shown of an older one; what decides numbers does."""

from __future__ import annotations

import json

import pytest
from tests.web.answers import text_of

import trueline
from trueline.schema.errors import RunError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.text.secrets import (
    HIDDEN,
    redacted,
    redacted_notes,
    redacted_source,
    redacted_text,
    redacted_words,
    sorted_out,
    without_credentials,
)
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

S = "Xy7Qp2Zt9Lm4Rk8W"
"""What must not be found anywhere."""


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", S], ["--api_key", S], [f"--api-key={S}"], [f"--token={S}"], ["--TOKEN", S], [f"--hfToken={S}"],
        ["--hub_token", S], ["--password", "123456"], ["--passwd=hunter2"], [f"--wandb-key={S}"], ["--auth", S],
        [f"WANDB_API_KEY={S}"], [f"openai_api_key={S}"], [f"+logger.wandb.api_key={S}"], [f"env.SECRET={S}"],
        ["bash", "-c", f"export HF_TOKEN={S}; python x.py --token {S} --password '{S} {S}'"],
        ["--config", f'{{"wandb": {{"api_key": "{S}"}}, "lr": 1}}'], ["-H", f"Authorization: Bearer {S}"],
        ["--header=X-Api-Key: " + S], ["sshpass", "-p", "hunter2"], ["mysql", "-phunter2"], ["-p", S],
        ["curl", "-u", f"me:{S}"], ["-p", "Hunter2Hunter"], ["--aws-secret-access-key", S], [f"--dsn=x{S}"],
        [f"https://me:{S}@host/x"], [f"HTTPS://{S}@github.com/a.git"], [f"--url=s3://AK:{S}@bucket/x"],
        [f"redis://:{S}@cache:6379/0"], [f"postgresql+psycopg2://u:p@{S}@db/x"], [f"https://u:a/{S}@host/x"],
        [f"u:{S}@host.example:6379"], [f"https://x/y?sig={S}&b=1"], [f"https://x/y?X-Amz-Signature={S}"],
        [f"hf_{S}{S}"], [f"sk-{S}{S}"], [f"sk-proj-{S}_{S}"], ["AKIAIOSFODNN7EXAMPLE"], [f"ghp_{S}{S}"],
        [f"glpat-{S}{S}"], [f"xoxb-1234-{S}"], [f"nvapi-{S}{S}"], [f"eyJhbGciOiJIUzI1NiJ9.{S}.{S}"],
        ["--cert", f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----"],
        [f"AccountName=a;AccountKey={S};"], ["--token", f"-{S}"], [f"--credentials={S}"], ["--connection-string", S],
    ],
)  # fmt: skip
def test_secrets_of_commands(words):
    told = " ".join(redacted_words(["train.py", *words]))
    for secret in (S, "123456", "hunter2", "AKIAIOSFODNN7EXAMPLE", "Hunter2Hunter"):
        assert secret not in told, told
    assert HIDDEN in told
    assert redacted_words(redacted_words(words)) == redacted_words(words)


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--lr", "1e-4", "--max-tokens", "2048", "--num_tokens=1000000", "--pad-token", "</s>"],
        ["--text-key", "text", "--label_key=label", "--token-id=0", "--tokenizer", "gpt2", "--key-dim", "64"],
        ["-p", "29500", "-p", "bf16-mixed", "--precision", "bf16", "-u", "train.py", "--keys", "3", "--seed=0"],
        ["--data", "s3://bucket/path@v2/x", "/data/me@host/x", "a@b", "--eos_token=<|endoftext|>", "--bypass", "x"],
        [
            "--monkey=banana",
            "--author",
            "me",
            "--session",
            "3",
            "https://host:8080/x@y",
            "model.layers:8",
            "--sketch=a",
        ],
        ["--git", "git@github.com:owner/repo.git", "--time", "10:30:00", "--rdzv-endpoint=10.0.0.1:29500"],
        [
            "--deepspeed",
            "ds.json",
            "--optim",
            "sk-learn-pipeline-of-words",
            "--keyword",
            "hf_hub",
            "--pass-through",
            "1",
        ],
    ],
)
def test_what_is_no_secret_stays(words):
    assert redacted_words(words) == words


HARMLESS = [
    "--max-tokens 512", "--tokenizer gpt2", "tokens=1024", "--author me", "--passes 3", "--monkey see", "--keys 7",
    "TOKENS=1024", "--MAX_TOKENS=512", "--Tokenizer=gpt2", "num_keys=3", "--bypass on", "--compass north",
    "--tokens text", "--key-value-heads 8", "--eos-token <|end|>", "--user_token <|user|>", "--mask-token [MASK]",
    "--keys=image,label",
    "key: value", "tokens: backward", "Tokens: labels", "TOKENS: none", "session: training", "token: eos",
    "auth: basic", "--sort-key loss", "--passthrough yes", "--signal-every 3", "--significance 0.05",
]  # fmt: skip
"""Words of a command as they are, and in a sentence."""

PROSE = [
    "tokens: backward", "The losses per token: those of backward.", "keys: input_ids and labels", "Key: the first one",
    "token = what the model reads", "pass: the second", "Tokens: bfloat16 everywhere", "key: layers.0.attention.weight",
    "signature: forward(x)", "Password: none was asked for", "the secret: patience", "Pass --token and --key.",
    "a token position-1024 further", "session: 3rd of 4", "the basic float32-accumulation", "key: Qwen2ForCausalLM",
    "samples are told by their key: epoch2/shard17", "auth: not asked", "TOKENS: BACKWARD", "tokens=backward",
    "the source of tokens: labels of `CausalLM`; the loss: backward", "sorted by key=length",
    "--password is not needed", "death_sig: signal.SIGTERM", "see :func:`@torch.jit.unused`", "key = 'group_src'",
    "'token': 'eos'",
]  # fmt: skip

SECRET = [
    f"--token {S}", f"--Token={S}", f"TOKEN={S}", "--password letmein", "--PassWord=letmein", "PASSWORD=letmein",
    f"--keys={S}", f"API_KEY={S}", f"--apiKey {S}", f"--API-KEY {S}", f"apikey={S}", f"Authorization: Basic {S}",
    "authorization: bearer letmein", f"AUTH={S}", f"--my-secret {S}", "SECRET: letmein", f"--hf-token={S}",
    f"HF_TOKENS={S}", f"hf_{S}{S}", f"x?token={S}", "https://h/x?a=1&key=letmein", f"https://h/x?TOKEN={S}",
    f"https://me:{S}@h/x", "HTTP://me:letmein@h/x", f"{{'token': '{S}'}}", '{"Token": "letmein"}', "token = 'letmein'",
    f"ghp_{S}{S}", f"tokens: {S}", "key: 3f2a9c0d1e5b", f"session={S}", f"--cookie={S}", f"JWT={S}", "passwd=letmein",
]  # fmt: skip


@pytest.mark.parametrize("words", HARMLESS)
def test_a_command_keeps_what_is_of_text_and_of_data(words):
    assert redacted_words(words.split()) == words.split()
    assert redacted_words([words]) == [words]


@pytest.mark.parametrize("note", HARMLESS + PROSE)
def test_sentences_stay(note):
    for said in (note, f"At step 3: {note}", f"the Run says: {note}, so look."):
        assert Manifest(notes=[said]).notes == [said]
        assert RankEnv(notes=[said]).notes == [said]


@pytest.mark.parametrize("words", SECRET)
def test_secrets_are_hidden_in_commands_and_values(words):
    split = words.split() if words.startswith("--") else [words]
    for told in (redacted_words(split), redacted_words(["bash", words]), sorted_out({"NCCL_X": words})[0]):
        assert not any(secret in str(told) for secret in (S, "letmein", "3f2a9c0d1e5b")), told
        assert HIDDEN in str(told)


@pytest.mark.parametrize("words", [words for words in SECRET if S in words or "3f2a" in words or "://" in words])
def test_secrets_are_hidden_in_sentences(words):
    note = Manifest(notes=[f"Could not read: {words} (403)"]).notes[0]
    assert not any(secret in note for secret in (S, "letmein", "3f2a9c0d1e5b")), note


def test_the_environment_keeps_what_has_a_say_and_counts_the_rest():
    kept, secret, others = sorted_out(
        {
            "NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4", "SLURM_PROCID": "3",
            "TORCH_HUB_URL": f"https://u:{S}@hub/x", "HCCL_WHITELIST_DISABLE": "1", "NVTE_FLASH_ATTN": "0",
            "TOKENIZERS_PARALLELISM": "false", "HF_ENDPOINT": f"https://u:{S}@hf", "HOME": "/root", "PATH": "/bin",
            "HF_TOKEN": S, "hf_token": S, "Wandb_Api_Key": S, "NCCL_AUTH_TOKEN": S, "AWS_SECRET_ACCESS_KEY": S,
            "DB_PASSWORD": S, "SLURM_JWT": S, "DATABASE_DSN": S, "OPENAI_KEY": S, "TORCH_CREDENTIALS": S, "MY_PASS": S,
        }
    )  # fmt: skip
    assert S not in json.dumps(kept)
    assert list(kept) == sorted(kept)
    assert {"NCCL_ALGO", "OMP_NUM_THREADS", "SLURM_PROCID", "TORCH_HUB_URL", "TOKENIZERS_PARALLELISM"} <= set(kept)
    assert {"HF_TOKEN", "hf_token", "Wandb_Api_Key", "NCCL_AUTH_TOKEN", "MY_PASS", "SLURM_JWT"} <= set(secret)
    assert others == 3


def test_paths_and_nested_values():
    assert without_credentials(f"s3://k:{S}@bucket/run") == f"s3://{HIDDEN}@bucket/run"
    told = json.dumps(
        redacted({"path": f"https://{S}@x", "values": {"auth_token": S, "lr": 1e-3, "x": [f"hf_{S}{S}"]}})
    )
    assert S not in told
    assert "0.001" in told
    assert redacted_text("plain words, nothing else: 1.5") == "plain words, nothing else: 1.5"


def test_neither_a_new_run_nor_an_old_one_shows_them(tmp_path):
    writer = RunWriter(tmp_path / "run", rank=0)
    environ = {"NCCL_DEBUG": f"https://u:{S}@x", "MY_TOKEN": S, "HOME": "/"}
    command, source = ["train.py", f"--token={S}"], {"format": "hf", "path": f"https://u:{S}@x"}
    writer.describe(Manifest(command=command, source=source), RankEnv(environ=environ, data={"url": f"https://{S}@x"}))
    writer.close()
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and S.encode() in path.read_bytes()]
    (tmp_path / "run" / "manifest.json").write_text(
        json.dumps({"schema_version": 1, "command": command, "source": source, "notes": [f"https://{S}@x"]})
    )
    (tmp_path / "run" / "env" / "rank-00000.json").write_text(json.dumps({"rank": 0, "environ": environ}))
    run = Run(tmp_path / "run")
    assert S not in run.manifest.model_dump_json() + run.env[0].model_dump_json()
    assert run.env[0].environ_secret == ["MY_TOKEN"]
    assert run.env[0].environ_others == 1
    page = tmp_path / "report.html"
    trueline.report([tmp_path / "run"], page)
    text = page.read_text() + text_of(page.read_text())
    assert S not in text
    assert "MY_TOKEN" in text


def test_credentials_of_a_url_are_in_no_message():
    with pytest.raises(RunError) as caught:
        Run(f"nothing://u:{S}@host/run")
    assert S not in str(caught.value)


PLANTED = (
    ("words", ["x.py", "-p", "tr0ub4dor"], "tr0ub4dor"),
    ("configuration", {"p": "tr0ub4dor"}, "tr0ub4dor"),
    ("configuration", {"pw": "letmein"}, "letmein"),
    ("configuration", {"db_pw": "letmein"}, "letmein"),
    ("configuration", {"login": "anna:letmein"}, "letmein"),
    ("configuration", {"pin": 4711}, "4711"),
    ("configuration", {"pin": "0815"}, "0815"),
    ("words", ["x.py", "--pin", "4711"], "4711"),
    ("words", ["x.py", "--pw=letmein"], "letmein"),
    ("words", ["x.py", "--login", "letmein"], "letmein"),
    ("words", ["curl", "-uanna:letmein", "https://h/x"], "letmein"),
    ("words", ["bash", "-c", "curl -u anna:letmein https://h/x"], "letmein"),
    ("words", ["curl", "--user=anna:letmein"], "letmein"),
    ("configuration", {"u": "anna:letmein"}, "letmein"),
    ("configuration", {"user": "anna:letmein9"}, "letmein9"),
    ("environment", ("NCCL_PW", "letmein"), "letmein"),
    ("environment", ("OMP_PIN", "4711"), "4711"),
    ("environment", ("NCCL_COMMENT", "the password is letmein"), "letmein"),
    ("environment", ("OMP_NOTE", "tr0ub4dorX"), "tr0ub4dorX"),
    ("environment", ("NCCL_X", "q8Zr4TnB7vKx2LmW9cYd"), "q8Zr4TnB7vKx2LmW9cYd"),
    ("configuration", {"comment": "my password is letmein, do not tell"}, "letmein"),
    ("configuration", {"description": "log in with pw letmein7"}, "letmein7"),
    ("words", ["x.py", "--note", "password is letmein"], "letmein"),
    ("configuration", {"notes": "token q8Zr4TnB7vKx2LmW9cYd"}, "q8Zr4TnB7vKx2LmW9cYd"),
    ("configuration", {"text": "q8Zr4TnB7vKx2LmW9cYd"}, "q8Zr4TnB7vKx2LmW9cYd"),
    ("words", ["x.py", "q8Zr4TnB7vKx2LmW9cYd"], "q8Zr4TnB7vKx2LmW9cYd"),
    ("configuration", {"passwords": ["letmein"]}, "letmein"),
    ("configuration", {"credentials": {"name": "anna", "value": "letmein"}}, "letmein"),
    ("configuration", {"password": 123456}, "123456"),
    ("configuration", {"secret": {"a": {"b": "letmein"}}}, "letmein"),
    ("configuration", {"password2": "letmein"}, "letmein"),
    ("configuration", {"passwd_old": "letmein"}, "letmein"),
    ("configuration", {"otp": "493027"}, "493027"),
    ("words", ["x.py", "--psk", "letmein"], "letmein"),
    ("configuration", {"passcode": "letmein"}, "letmein"),
    ("configuration", {"pass_key": "letmein"}, "letmein"),
    ("text", "PW=letmein python x.py", "letmein"),
    ("text", "mysql -u anna -pletmein7 db", "letmein7"),
    ("text", "sshpass -p letmein ssh h", "letmein"),
    ("text", "export DB_LOGIN='anna/letmein'", "letmein"),
    ("note", "Could not log in: password is letMein7", "letMein7"),
    ("configuration", {"args": ["--pw", "letmein"]}, "letmein"),
    ("configuration", {"cmd": "train.py --pin 4711"}, "4711"),
    ("configuration", {"wifi": {"psk": "letmein"}}, "letmein"),
    ("environment", ("TORCH_LOGIN", "letmein"), "letmein"),
    ("configuration", {"user": "anna", "pass": "letmein"}, "letmein"),
    ("text", "wget --user anna --password letmein https://h", "letmein"),
)
"""Door, what is planted, and what may not be seen of it."""
DOORS = {
    "words": redacted_words,
    "configuration": redacted,
    "environment": lambda pair: sorted_out(dict([pair]))[0],
    "text": redacted_text,
    "note": lambda note: redacted_notes([note]),
}


@pytest.mark.parametrize(("door", "planted", "secret"), PLANTED)
def test_one_rule_hides_secrets_at_every_door(door, planted, secret):
    assert secret not in json.dumps(DOORS[door](planted))


@pytest.mark.parametrize(
    "words",
    [
        "bash --login train.sh", "train.py --pin_memory true --pin 1", "srun -p gpu2023b train.py", "mkdir -p ckpt2024",
        "torchrun -p 29500 t.py", "x.py --run_name Llama3Dot1Nemotron70BInstruct --cls DeepseekV3ForCausalLM",
        "x.py --revision 3f2a9c0d1e5b3f2a9c0d1e5b3f2a9c0d1e5b", "the login node is gpu01 of cluster", "-p bf16-mixed",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_door_stays(words):
    assert redacted_text(words) == words
    assert redacted_words(words.split()) == words.split()
    assert redacted({"args": words}) == {"args": words}


def test_source_code_is_kept_without_what_looks_secret():
    source = """password = "letmein"
os.environ["WANDB_API_KEY"] = "abc"
headers = {"Authorization": "Bearer abcdef123456789"}
login(token="hf_abcdefghijklmnopqrstuvwx")
x = "aZ9bX8cY7dW6eV5fU4gT3"
url = "https://user:pw@host/x"
"""
    hidden = redacted_source(source)
    for secret in ("letmein", "abc", "hf_", "aZ9b", "pw@"):
        assert secret not in hidden
    assert len(hidden.splitlines()) == len(source.splitlines())
    assert redacted_source("-----BEGIN PRIVATE KEY-----\nabc\n") == HIDDEN


@pytest.mark.parametrize(
    "line",
    [
        'tokens = batch["tokens"]; pad_token = tokenizer.eos_token',
        "key, value = self.key(x), self.value(x)",
        "for num_tokens, loss in zip(num_tokens_per_rank, losses_of_all_ranks_together):",
        "@torch.no_grad()",
    ],
)
def test_a_line_of_a_training_script_stays(line):
    assert redacted_source(line) == line
