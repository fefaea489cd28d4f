"""The resources of nodes besides GPUs, and a job's share of them. Memory is MiB, as Slurm counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """The resources of a node besides GPUs, or the part of them that is taken.

    Memory is MiB; `gres`: other generic resources by name, sorted.
    """

    cpus: int = 0
    memory_mib: int = 0
    gres: tuple[tuple[str, int], ...] = ()

    def has_room_for(self, need: Room) -> bool:
        """Return whether there is as much of everything as `need` says."""
        if self.cpus < need.cpus or self.memory_mib < need.memory_mib:
            return False
        if not need.gres:
            return True
        there = dict(self.gres)
        return all(there.get(name, 0) >= count for name, count in need.gres)

    def plus(self, other: Room, sign: int = 1) -> Room:
        """Return both together; with sign -1 what is left, below 0 where `other` has more."""
        gres = self.gres
        if other.gres:
            counts = dict(gres)
            for name, count in other.gres:
                counts[name] = counts.get(name, 0) + sign * count
            gres = tuple(sorted(counts.items()))
        return Room(self.cpus + sign * other.cpus, self.memory_mib + sign * other.memory_mib, gres)

    def maximum(self, other: Room) -> Room:
        """Return the larger of both for each resource."""
        gres = dict(other.gres) | {n: max(c, dict(other.gres).get(n, 0)) for n, c in self.gres}
        return Room(max(self.cpus, other.cpus), max(self.memory_mib, other.memory_mib), tuple(sorted(gres.items())))


NO_ROOM = Room()


@dataclass(frozen=True)
class NodeNeeds:
    """A job's needs on each of its nodes besides GPUs. Memory is MiB, 0 where Slurm does not count it."""

    cpus: int = 0
    #: counts where it comes to more than `cpus`
    cpus_per_gpu: int = 0
    memory_mib: int = 0
    memory_per_cpu_mib: int = 0
    memory_per_gpu_mib: int = 0
    #: all the memory of each node
    whole_memory: bool = False
    #: whole nodes (--exclusive and partitions that give out nothing less)
    whole_nodes: bool = False
    #: one thread of a core (--hint=nomultithread): its CPUs are cores
    one_thread: bool = False
    gres: tuple[tuple[str, int], ...] = ()
    #: memory that the node must have, whoever holds it
    total_memory_mib: int = 0
    tmp_disk_mib: int = 0
    #: the CPUs that its partitions' limits let it take of a node; 0: no limit
    max_cpus: int = 0
    max_memory_mib: int = 0

    def room_for(self, gpus: int, threads: int = 1, memory_mib: int = 0) -> Room:
        """Return what `gpus` GPUs of one node take with them, on a node with so many threads a core and so much memory.

        CPUs are given out by whole cores.
        """
        cpus = max(self.cpus, self.cpus_per_gpu * gpus)
        memory = self.memory_mib + self.memory_per_gpu_mib * gpus + self.memory_per_cpu_mib * cpus
        cpus = cpus * threads if self.one_thread else -(-cpus // threads) * threads
        return Room(cpus, memory_mib if self.whole_memory else memory, self.gres)


GPUS_ONLY = NodeNeeds()
