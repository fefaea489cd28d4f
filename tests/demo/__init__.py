"""The main job end to end: a throwaway cluster, the daemon, real training jobs that are resized while one watches."""
