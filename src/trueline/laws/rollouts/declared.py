"""Training and sampling of one policy: two engines, one distribution."""

from trueline.schema.law import Code, Law

LAW = Law(
    answers={"left_out": "answers.left_out_notes", "reference": "answers.reference_findings"},
    checks={
        "decode-diverges": Code(explains=("*rollout-gap",)),
        "logprob-gap": Code(explains=("logprob-gap-grows",), group="rollout-gap"),
        "logprob-gap-grows": Code(group="rollout-gap"),
        "policy-lag": Code(explains=("sampling-mismatch", "*rollout-gap")),
        "prefill-diverges": Code(explains=("*rollout-gap",)),
        "recorded-logprobs-wrong": Code(explains=("*rollout-gap",)),
        "reward-differs": Code(),
        "routing-differs": Code(explains=("*rollout-gap",)),
        "sampling-mismatch": Code(
            explains=("recorded-logprobs-wrong", "prefill-diverges", "decode-diverges", "*rollout-gap")
        ),
        "tokens-differ": Code(
            explains=(
                "prefill-diverges",
                "decode-diverges",
                "sampling-mismatch",
                "recorded-logprobs-wrong",
                "*rollout-gap",
            )
        ),
        "weights-not-synced": Code(explains=("sampling-mismatch", "recorded-logprobs-wrong", "*rollout-gap")),
    },
)
