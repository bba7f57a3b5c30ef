"""What the layers of a model are to each other."""

from trueline.laws.layers.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(columns=COLUMNS, probes=("probe",), checks={"activation-missing": Code()})
