"""What a model keeps from one batch to the next."""

from trueline.laws.carried_state.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(columns=COLUMNS, probes=("probe",), checks={"state-carried": Code(signal="loss")})
