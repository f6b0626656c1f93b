"""Requests for versions, as the gateway makes them of the slots of a server."""

from __future__ import annotations

import asyncio

from trainer_server.engines.slots import Key, Slots


class SlotRequests:
    """What has slots that are asked for."""

    slots: Slots

    async def touch(self, *keys: Key) -> None:
        for key in keys:
            async with self.slots.use(key):
                pass

    def hold(self, key: Key) -> tuple[asyncio.Event, asyncio.Task[None]]:
        """A request that lasts until the event is set."""
        end = asyncio.Event()

        async def request() -> None:
            async with self.slots.use(key):
                await end.wait()

        return end, asyncio.create_task(request())
