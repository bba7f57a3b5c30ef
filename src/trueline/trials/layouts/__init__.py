"""Do layouts of one job agree, by more than rounding explains? What was measured of an arm, and what it says."""
