"""The sidecar: the parts of Headrace wired together, started, reloaded, watched, and stopped within a deadline.

HTTP comes first and goes last, so that whoever watches can see it wait for its store and drain. What is not stored or settled
when it stops, whether by SIGTERM, a second signal or a crash, comes again with its redelivery: stopping in haste costs time,
never an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from headrace.app.config import Config, load_config
from headrace.app.http import Api, HttpServer
from headrace.app.logs import Format, Level, configure_logs
from headrace.app.metrics import Metrics
from headrace.app.wiring import Targets, class_path, default_settings, stream_specs, trigger_specs
from headrace.dispatch import Dispatcher
from headrace.errors import ConfigError, HeadraceError, StoreError, StoreUnavailable
from headrace.runner import Runner
from headrace.runner.keeping import keep_running
from headrace.store import Store, Topic, TriggerDefinition, Unit

log = structlog.stdlib.get_logger("headrace.serve")

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0
"""Seconds between tries to open a store that does not answer."""
SWEEP_SECONDS: Final = 3600.0
"""How often what is past its retention is deleted."""
SCRAPE_TIMEOUT: Final = 2.0
"""How long a scrape may wait for the store's own figures."""
HTTP_STOP: Final = 1.0


class _Observing(Metrics):
    """Counts, and tells the dispatcher at once what there is to dispatch."""

    dispatcher: Dispatcher | None = None

    def on_stored(self, units: Sequence[Unit]) -> None:
        super().on_stored(units)
        if self.dispatcher is not None:
            self.dispatcher.wake({unit.trigger_id for unit in units if unit.events})


class Service:
    """One `serve`. Raises `HeadraceError` when it cannot start and waiting would not help."""

    def __init__(self, config: Config, configure_logs: Callable[[Config], None]) -> None:
        self._config = config
        self._configure_logs = configure_logs
        self._metrics = _Observing()
        self._targets = Targets()
        self._store: Store | None = None
        self._runner: Runner | None = None
        self._dispatcher: Dispatcher | None = None
        self._waiting_for = "it is starting"
        self._stopping = asyncio.Event()
        self._reload = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second one exits at once. SIGHUP reloads the configuration."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        http = self._listen()
        http.start()
        log.info("listening", url=http.address, pid=os.getpid())
        helpers: list[asyncio.Task[None]] = []
        try:
            if await self._open():
                helpers = [
                    loop.create_task(keep_running("reloads", self._follow_reloads), name="reloads"),
                    loop.create_task(keep_running("retention", self._sweep), name="retention"),
                ]
                await self._stopping.wait()
        finally:
            self._waiting_for = "it is stopping"
            deadline = loop.time() + self._config.general.shutdown_timeout
            for helper in helpers:
                helper.cancel()
            if helpers:
                await asyncio.wait(helpers, timeout=HTTP_STOP)
            await self._close(deadline)
            await http.stop(min(HTTP_STOP, max(deadline - loop.time(), 0.1)))

    # Starting.

    def _listen(self) -> HttpServer:
        section = self._config.http
        api = Api(
            streams=lambda: self._config.streams,
            unready=self._unready,
            metrics=self._metrics.registry,
            refresh=self._refresh,
            token=section.token,
            max_body_bytes=section.max_body_bytes,
        )
        try:
            return HttpServer(api.app, host=section.host, port=section.port)
        except OSError as error:
            raise HeadraceError(f"cannot listen on {section.host}:{section.port}: {error.strerror or error}") from error

    async def _open(self) -> bool:
        """Open the store and start, once the store is there; False if it is to stop before that."""
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            try:
                if self._store is None:
                    self._store = await self._open_store()
                await self._start(self._store)
            except StoreUnavailable as error:
                self._waiting_for = f"the store does not answer: {error}"
                log.warning("the store does not answer", error=str(error), retry_in=wait)
            else:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()
            wait = min(2 * wait, LONGEST_WAIT)
        return False

    async def _open_store(self) -> Store:
        section = self._config.store
        keys = [key.get_secret_value() for key in section.secret_keys]
        return await Store.open(section.url, secret_keys=keys, exclusive=True)

    async def _start(self, store: Store) -> None:
        config = self._config
        self._describe(config)
        runner = Runner(
            store,
            stream_specs(config),
            trigger_specs(config, await self._registered(store)),
            observer=self._metrics,
            defaults=default_settings(config),
        )
        await runner.start()
        self._runner = runner
        dispatcher = Dispatcher(store, self._targets.of(config), config=config.dispatch, observer=self._metrics)
        self._dispatcher = self._metrics.dispatcher = dispatcher
        dispatcher.start()
        store.watch(self._changed_elsewhere)
        self._waiting_for = ""
        for warning in config.warnings:
            log.warning(warning)
        log.info("serving", store=store.url, streams=len(config.streams), triggers=len(config.triggers))

    def _describe(self, config: Config) -> None:
        connectors = {name: stream.connector_name for name, stream in config.streams.items()}
        classes = {name: class_path(trigger) for name, trigger in config.triggers.items()}
        self._metrics.describe(connectors=connectors, classes=classes)

    async def _registered(self, store: Store) -> dict[str, TriggerDefinition]:
        return {record.definition.trigger_id: record.definition for record in await store.triggers.all()}

    def _changed_elsewhere(self, topic: Topic) -> None:
        """Another process stored something. Changed triggers need no word: the runner looks for them twice a second."""
        if topic == "events" and self._dispatcher is not None:
            self._dispatcher.wake()

    # Running.

    async def _follow_reloads(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            try:
                await self._apply(await asyncio.to_thread(load_config, self._config.path))
            except ConfigError as error:
                for problem in error.problems:
                    log.error("the new configuration is wrong; the old one stays", problem=problem)
            except StoreError as error:
                log.error("the new configuration could not be applied; the old one stays", error=str(error))

    async def _apply(self, config: Config) -> None:
        """Go over to another configuration: what is unchanged runs on."""
        assert self._store is not None
        assert self._runner is not None
        assert self._dispatcher is not None
        for name in ("store", "http", "dispatch"):
            if getattr(config, name) != getattr(self._config, name):
                log.warning(f"`{name}` has changed: that takes effect when serve is restarted")
        targets = {name: trigger.target_config for name, trigger in config.triggers.items()}
        if problems := self._config.dispatch.problems(targets):  # of the lease that stays as it is
            raise ConfigError(problems)
        await self._runner.apply(stream_specs(config), trigger_specs(config, await self._registered(self._store)))
        self._config = config
        self._describe(config)
        self._dispatcher.set_targets(self._targets.of(config))
        self._configure_logs(config)
        for warning in config.warnings:
            log.warning(warning)
        log.info("reloaded", streams=len(config.streams), triggers=len(config.triggers))

    async def _sweep(self) -> None:
        assert self._store is not None
        while True:
            general = self._config.general
            try:
                swept = await self._store.sweep(
                    retention=general.retention,
                    dead_retention=general.dead_retention,
                    dedupe_retention=general.dedupe_retention,
                )
                log.debug("swept", payloads=swept.payloads, identities=swept.identities, dead_letters=swept.dead_letters)
            except StoreError as error:
                log.warning("what is past its retention could not be deleted", error=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    def _unready(self) -> list[str]:
        """Why nothing should rely on this process now."""
        if self._waiting_for or self._runner is None or self._dispatcher is None:
            return [self._waiting_for or "it is starting"]
        reasons = self._runner.status().problems
        dispatch = self._dispatcher.status()
        if not dispatch.running:
            reasons.append("the dispatcher is not running")
        elif not dispatch.store_available and self._runner.status().is_store_available:
            reasons.append("the store does not answer the dispatcher")
        reasons += [f"events of {trigger_id} wait, and it has no target" for trigger_id in sorted(dispatch.untargeted)]
        return reasons

    async def _refresh(self) -> None:
        """Bring the figures that are read, not counted, up to date."""
        if self._runner is not None:
            self._metrics.set_status(self._runner.status())
        if self._dispatcher is not None:
            self._metrics.set_calls(self._dispatcher.status().calls)
        if self._store is not None:
            with contextlib.suppress(StoreError, TimeoutError):  # `headrace_store_available` says it
                async with asyncio.timeout(SCRAPE_TIMEOUT):
                    self._metrics.set_backlog(await self._store.outbox.backlog())

    # Stopping.

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("stopped at once; what is not finished comes again", signal=number.name)
            logging.shutdown()
            os._exit(128 + number)
        log.info("draining", signal=number.name, seconds=self._config.general.shutdown_timeout)
        self._stopping.set()

    async def _close(self, deadline: float) -> None:
        """Drain the runner and the dispatcher side by side, then close the store."""
        loop = asyncio.get_running_loop()

        def left() -> float:
            return max(deadline - loop.time(), 0.1)

        parts = []
        if self._runner is not None:
            parts.append(loop.create_task(self._runner.stop(0.9 * left()), name="stop runner"))
        if self._dispatcher is not None:
            parts.append(loop.create_task(self._dispatcher.stop(0.9 * left()), name="stop dispatcher"))
        if parts:
            _, late = await asyncio.wait(parts, timeout=left())
            for part in parts:
                if part in late:
                    log.error("did not end in time", part=part.get_name())
                    part.cancel()
                elif not part.cancelled() and (error := part.exception()) is not None:
                    log.error("stopping failed", part=part.get_name(), exc_info=error)
        if self._store is not None:
            try:
                async with asyncio.timeout(left()):
                    await self._store.aclose()
            except (StoreError, TimeoutError) as error:
                log.error("the store did not close", error=str(error) or "it took too long")
        log.info("stopped")


def serve(path: Path, *, log_level: Level = "info", log_format: Format = "auto") -> None:
    """Load the configuration, and serve it until a signal. Raises `HeadraceError` when that cannot be."""
    config = load_config(path)

    def configure(config: Config) -> None:
        configure_logs(log_payloads=config.general.log_payloads, level=log_level, format=log_format)

    async def run() -> None:
        await Service(config, configure).run()

    configure(config)
    _calm_collector()
    asyncio.run(run())


def _calm_collector() -> None:
    """Let Python's collector look less often: messages by the thousand are not cycles, and each look walks all that lives.
    Measured on Kafka with ten filters, the defaults cost half as much again in CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
