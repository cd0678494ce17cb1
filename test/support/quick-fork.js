// `quick-fork.c` is for a worker, not for the programs that it starts.
delete process.env.LD_PRELOAD
