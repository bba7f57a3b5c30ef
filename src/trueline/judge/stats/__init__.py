"""Statistics on arrays: bets, intervals, tails and change points. NumPy only; nothing here knows a Run."""
