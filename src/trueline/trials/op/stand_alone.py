"""A folder that proves with torch alone what one operation does."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.capture.record.values import stored
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run
from trueline.store.records.tensor_files import TensorFile
from trueline.trials.frame.trial import Answer, Arm, TrialAnswer
from trueline.trials.op import proof, recalled
from trueline.trials.op.judged_call import JudgedCall, judged_call
from trueline.trials.op.recorded_calls import call_at

FILES = ("op.py", "expected.json", "inputs.safetensors")
QUESTION = "Is the error of this operation more than rounding explains?"


@dataclass(frozen=True)
class OpAnswer:
    """The ``answer`` at ``site``, what each output is (``proof.proved``), and the files that were written."""

    answer: TrialAnswer
    site: str
    outputs: Mapping[str, Mapping[str, Any]]
    written: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract, with what is known of the outputs."""
        own = {"site": self.site, "outputs": dict(self.outputs), "written": list(self.written)}
        return self.answer.to_json() | own


def prove_op(
    run: Run,
    site: str,
    *,
    device: str,
    out: Path,
    overwrite: bool = False,
    seed: int = 0,
    modules: Sequence[str] = (),
) -> OpAnswer:
    """Judge the call at ``site`` on ``device``, and write it to ``out``; ``modules`` were imported for its operator,
    and who calls it again needs them. Raises ``SiteError`` and ``InputError`` for a site where no operation was
    recorded, or a place that cannot be written to.
    """
    call = call_at(run, site)
    require_free(out, overwrite=overwrite)
    try:
        made = judged_call(run, call, seed=seed)
        outputs = made.on(device)
    except CannotTell as why:
        says = f"The call of {call.api} at {call.site} cannot be judged: {why}."
        return OpAnswer(_answer("undecided", (says,), device, 0), call.site, {}, ())
    written = write(made, out)
    verdicts = [each["verdict"] for each in outputs.values()]
    answer: Answer = "confirmed" if "beyond" in verdicts else "undecided"
    if verdicts and all(each == "within" for each in verdicts):
        answer = "excluded"
    options = [*(("--device", device) if device != "cpu" else ()), *(f"--import={module}" for module in modules)]
    runs = shlex.join(["python", os.fspath(out / FILES[0]), *options])
    next_ = (f"{runs} asks it again, with torch alone: copy the folder to another machine, and name its --device.",)
    if answer == "confirmed":
        next_ = (f"{runs} proves it again, with torch alone: send the folder to whoever maintains the kernel.",)
    if made.inputs.drawn:
        next_ += ('Record this step with depth = "tensor": what it does may depend on its true inputs.',)
    return OpAnswer(_answer(answer, _says(made, outputs), device, 2, next_), call.site, outputs, written)


def require_free(out: Path, *, overwrite: bool) -> None:
    """Raise ``InputError`` where the files cannot go to ``out``."""
    there = [name for name in FILES if (out / name).exists()]
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file, and a folder is written. Pass another --out.")
    if there and not overwrite:
        raise InputError(f"'{out}' has a file '{there[0]}' already. Pass another --out, or --overwrite to replace it.")


def write(made: JudgedCall, out: Path) -> tuple[str, ...]:
    """Write the files, and return their paths."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / FILES[0]).write_text(alone())
        (out / FILES[1]).write_text(json.dumps(made.document, indent=1) + "\n")
        file = TensorFile(os.fspath(out / FILES[2]), reserve_bytes=4096)
        for slot, x in made.inputs.tensors.items():
            taken = stored(x.detach(), step=0, key=slot)
            if taken is None:
                raise InputError(f"The input {slot} is {x.dtype}, which safetensors does not know.")
            file.add(taken[1])
        file.finish()
    except OSError as error:
        raise InputError(f"'{out}' cannot be written to: {error}. Pass another --out.") from None
    return tuple(os.fspath(out / name) for name in FILES)


def alone() -> str:
    """``proof`` as one file, with the text of ``recalled`` where it imports that."""
    _, _, recalled_text = inspect.getsource(recalled).partition("from __future__ import annotations\n")
    begins, _, rest = inspect.getsource(proof).partition(f"from {recalled.__name__} import")
    return begins + recalled_text.strip() + "\n" + rest.partition(")\n")[2]


def _says(made: JudgedCall, outputs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    call = made.document["call"]
    says = [f"{call['function']} at {made.call.site}, against the same in float64:"]
    for slot, each in outputs.items():
        says.append(f"{slot}: {each['verdict']}: {each['why']}.")
        if each["verdict"] == "beyond" and each["worst"]:
            worst = each["worst"]
            says.append(f"{slot}: worst at {worst['index']}: {worst['is']}, exact {worst['exact']}.")
        if each["as_recorded"] is not None:
            says.append(f"{slot}: {'the same bits as' if each['as_recorded'] else 'other bits than'} the Run recorded.")
        if not each["repeats"]:
            says.append(f"{slot}: a second call with the same inputs returns other bits.")
    if made.inputs.drawn:
        says.append(f"Drawn to the recorded statistics, as they were not stored: {', '.join(made.inputs.drawn)}.")
    return tuple(says)


def _answer(answer: Answer, says: Sequence[str], device: str, runs: int, next_: tuple[str, ...] = ()) -> TrialAnswer:
    arms = (Arm(device, runs, runs if answer == "confirmed" else 0),)
    return TrialAnswer("op", QUESTION, answer, tuple(says), arms, next_)
