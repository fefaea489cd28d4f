"""SynergyTask: what a job would do on given GPUs (performance, memory, efficiency, plan search)."""
