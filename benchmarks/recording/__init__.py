"""What recording costs, beside msProbe: time, memory, bytes and files a step, both tools and the bare step in turns."""
