"""How quickly the page of `trueline view` shows, and answers, a large Run."""
