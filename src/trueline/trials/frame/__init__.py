"""What all trials share: what is asked, the runs, their outcomes, and what chance makes of them."""
