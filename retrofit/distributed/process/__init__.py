"""The process: its place in the job, its options, its GPU, and the process group that it joins."""
