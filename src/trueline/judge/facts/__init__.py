"""What a training did, in lines: facts with their numbers, and no judgement."""
