"""The page that `trueline view` serves: what is concluded and measured of Runs, as answers to a browser."""
