"""Does watching end or change a job? Random jobs, each run by itself and watched."""
