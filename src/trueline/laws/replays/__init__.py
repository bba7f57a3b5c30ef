"""The same work done twice, in the job."""
