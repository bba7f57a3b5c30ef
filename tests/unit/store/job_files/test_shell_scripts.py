"""What a script sets is read as a shell would read it, where that takes no shell."""

import pytest

from trueline.store.job_files.command_lines import options_of, read_value
from trueline.store.job_files.shell_scripts import read_script, training_command


def options(text):
    return options_of(training_command(read_script(text)))


def test_arrays_texts_and_defaults_are_put_in():
    script = """
    LR=${LR:-1e-4}
    ARGS=(
        --lr $LR # the rate
        --bf16
    )
    MORE="--seed 1 \\
          --data ${DATA:-"/d/x"}"
    torchrun --nproc_per_node 2 train.py ${ARGS[@]} $MORE
    """
    assert options(script) == {"nproc_per_node": 2, "lr": 1e-4, "bf16": True, "seed": 1, "data": "/d/x"}


def test_sums_of_whole_numbers_are_worked_out():
    assert options("A=8\nB=4\npython t.py --world-size $(($A*$B)) --dp $((A * B / (2 + 2)))") == {
        "world_size": 32,
        "dp": 8,
    }


@pytest.mark.parametrize(("kind", "option"), [("fp8", "fp8"), ("bf16", "bf16")])
def test_conditions_on_known_variables_are_followed(kind, option):
    script = f"""
    KIND={kind}
    EXTRA=()
    if [[ "$KIND" == "fp8" ]]; then
        EXTRA+=("--fp8 hybrid")
    else
        EXTRA+=(--bf16)
    fi
    torchrun train.py ${{EXTRA[@]}}
    """
    assert set(options(script)) == {option}


def test_exports_are_of_the_environment_and_the_longest_command_counts():
    script = read_script(
        "export NCCL_ALGO=Ring\nmkdir -p x\npython prepare.py --n 1\nCUDA_X=1 torchrun t.py --lr 1 --wd 2"
    )
    assert script.exported == {"NCCL_ALGO": "Ring", "CUDA_X": "1"}
    assert options_of(training_command(script)) == {"lr": 1, "wd": 2}


def test_what_only_a_shell_can_tell_stays_as_it_is_written():
    assert options("python t.py --save $1 --rank $(hostname)")["save"] == "$1"


def test_overrides_of_hydra_and_lists():
    words = [
        "python",
        "-m",
        "main",
        "a.b.c=1e-6",
        "+a.d=True",
        "~e",
        "trainer.logger=['console','wandb']",
        "--layers",
        "1",
        "2",
        "3",
    ]
    assert options_of(words) == {
        "a.b.c": 1e-6,
        "a.d": True,
        "trainer.logger": ["console", "wandb"],
        "layers": [1, 2, 3],
        "m": "main",
    }


def test_negative_numbers_are_values():
    assert options_of(["--split", "-1", "--lr=-0.5"]) == {"split": -1, "lr": -0.5}


def test_a_value_is_read_as_what_it_writes():
    assert [read_value(text) for text in ("1", "1.0", "1e-4", "True", "none", "'x'")] == [1, 1.0, 1e-4, True, None, "x"]


@pytest.mark.parametrize("use", [None, "0"])
def test_arguments_in_arrays_whose_launcher_an_if_chooses(use):
    given = "" if use is None else f"USE_UV={use}\n"
    script = (
        given
        + """
    LAUNCH=(python3)
    if [ "${USE_UV:-1}" != 0 ] && [ "${DEVICE:-gpu}" = gpu ]; then
        LAUNCH=(uv run --frozen --all-packages --extra vllm --extra fsdp python3)
    fi
    ACTOR=(
        actor.optim.lr=1e-6
        "trainer.name=two words"
    )
    declare -a MORE=(trainer.steps=10)
    UNBUFFERED=1 "${LAUNCH[@]}" -m trainer.main_ppo \\
        "${ACTOR[@]}" "${MORE[@]}"
    """
    )
    found = options(script)
    assert (found["actor.optim.lr"], found["trainer.name"], found["trainer.steps"]) == (1e-6, "two words", 10)
    assert "frozen" not in found


def test_a_program_that_an_if_starts_and_conditions_in_one_line():
    script = """
    A=1
    if [ "$A" = 2 ]; then ARGS=(--lr 2); else ARGS=(--lr 3); fi
    if ! torchrun train.py "${ARGS[@]}" --wd 4; then
        echo failed
        exit 1
    fi
    """
    assert options(script) == {"lr": 3, "wd": 4}


RAY = r"""
SCRIPT_DIR="$(cd -- "$(dirname -- "$0")" &>/dev/null && pwd)"
ENV_JSON="{
  \"env_vars\": {
    \"PATH\": \"${SCRIPT_DIR}\"
  }
}"
TRAIN_ARGS=(
   --lr 1e-6
   --adam-beta2 0.98
)
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="${ENV_JSON}" \
   -- python3 train.py "${TRAIN_ARGS[@]}" ${MODEL_ARGS[@]} --seed 1
"""


def test_what_ray_submits_is_read_and_an_array_of_another_file_is_no_value():
    assert options_of(training_command(read_script(RAY))) == {"lr": 1e-6, "adam_beta2": 0.98, "seed": 1}


@pytest.mark.parametrize("mark", ["EOF", "'EOF'"])
def test_a_here_document_that_a_variable_is_read_from_is_its_value(mark):
    given = f"read -r -d '' commands <<{mark}"
    script = f"{given}\nmodule \\\n  --lr 5e-7 \\\n  --data.max_len 8192\nEOF\ndeepspeed --module $commands\n"
    assert options_of(training_command(read_script(script))) == {"module": "module", "lr": 5e-7, "data.max_len": 8192}


def test_a_here_document_that_a_program_is_given_sets_nothing():
    script = "cat > config.yaml <<EOF\npython other.py --lr 1\nEOF\npython train.py --lr 2\n"
    assert options_of(training_command(read_script(script))) == {"lr": 2}
