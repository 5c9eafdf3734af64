"""Which blocks are free, and how many sequences use each of the others."""

from __future__ import annotations

from collections.abc import Iterable


class OutOfBlocks(RuntimeError):
    """A cache that is full. `needed` blocks were asked for, `free` are left; nothing has changed."""

    def __init__(self, needed: int, free: int, total: int) -> None:
        super().__init__(
            f"{needed} more blocks are needed and {free} of {total} are free: free a sequence, or give the cache more "
            "tokens or bytes."
        )
        self.needed, self.free, self.total = needed, free, total


class BlockPool:
    """Blocks `0 … num_blocks − 1`, each free or used by a number of sequences.

    Blocks are given out by a plan, so that a request that cannot be met leaves no trace.
    """

    def __init__(self, num_blocks: int) -> None:
        self._users = [0] * num_blocks
        self._free = list(range(num_blocks))[::-1]  # the last one goes first: what has just been freed is reused

    @property
    def num_blocks(self) -> int:
        return len(self._users)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def users(self, block: int) -> int:
        """How many sequences use a block; 0 when it is free."""
        return self._users[block]

    def share(self, blocks: Iterable[int]) -> None:
        """One more sequence uses each of these blocks, which are in use already."""
        for block in blocks:
            assert self._users[block] > 0, f"block {block} is free and cannot be shared"
            self._users[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One sequence less uses each of these blocks; those that nobody uses are free again."""
        for block in blocks:
            assert self._users[block] > 0, f"block {block} is free already"
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free.append(block)

    def plan(self) -> BlockPool.Plan:
        """Begins a plan. Only one may be open at a time, and nothing else may change the pool meanwhile."""
        return self.Plan(self)

    class Plan:
        """What is to be taken and released. Until `commit` the pool is as it was."""

        def __init__(self, pool: BlockPool) -> None:
            self._pool = pool
            self._taken = 0
            self._released: list[int] = []

        def is_shared(self, block: int) -> bool:
            """Whether several sequences use a block, once this plan has been carried out as far as it goes."""
            return self._pool.users(block) - self._released.count(block) > 1

        def take(self) -> int:
            """A free block for one sequence. Where there is none left, `commit` says so."""
            self._taken += 1
            return self._pool._free[-self._taken] if self._taken <= self._pool.free_blocks else -1

        def release(self, block: int) -> None:
            """One sequence less uses a block that others still use."""
            self._released.append(block)

        def commit(self) -> None:
            """Carries the plan out.

            Raises:
                OutOfBlocks: it takes more blocks than are free.
            """
            pool = self._pool
            if self._taken > pool.free_blocks:
                raise OutOfBlocks(self._taken, pool.free_blocks, pool.num_blocks)
            for _ in range(self._taken):
                pool._users[pool._free.pop()] = 1
            pool.release(self._released)
