"""Training and sampling of one policy: two engines, one distribution."""
