"""One run of a scenario, from the first arrival until nothing happens any more, with an eye on everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from headrace.contracts.codec import handshake_codec
from headrace.contracts.engine import PROTOCOL_VERSION, EngineCoreRequestType
from headrace.contracts.lifecycle import EngineHello
from headrace.simulation.clock import Clock
from headrace.simulation.engine import SimulatedEngine
from headrace.simulation.frontend import SimulatedFrontend, User
from headrace.simulation.scenario import RequestSpec, Scenario, StreamSpec
from headrace.simulation.transport import Link
from headrace.simulation.violation import Violation

FIRST_STREAM_NAME = 1_000_000


def run(scenario: Scenario) -> Counter[str]:
    """Returns what happened, counted. Raises `Violation` for a fault of the engine."""
    world = World(scenario)
    try:
        world.run()
    except Violation:
        raise
    except Exception as error:
        raise Violation("crash", type(error).__name__, str(error)) from error
    return world.counters


class World:
    def __init__(self, scenario: Scenario) -> None:
        self.counters: Counter[str] = Counter()
        self._scenario = scenario
        self._clock = Clock()
        self._salts: dict[str, str | None] = {}
        self._links: list[Link] = []
        self._frontends = [
            SimulatedFrontend(scenario, self.counters, client_index=index, connect=self._connector(index))
            for index in range(scenario.num_clients)
        ]
        self._hellos = [self._link(f"hello {f.client_index}", f.receive_hello) for f in self._frontends]
        self._users = [User(spec, scenario, self._clock) for spec in scenario.requests]
        self._streams = [RequestStream(self, spec) for spec in scenario.streams]
        self._engine: SimulatedEngine
        self._num_lives = 0

    def run(self) -> None:
        self._start_engine()
        for user in self._users:
            self._clock.after(user.spec.arrives, partial(self.admit, user))
        for stream in self._streams:
            self._clock.after(0, stream.pump)
        for time in self._scenario.deaths:
            self._clock.after(time, self._lose_engine)
        for place, time in enumerate(self._scenario.resets):
            self._clock.after(time, self._frontends[place % len(self._frontends)].reset_prefix_cache)
        for place, time in enumerate(self._scenario.cancels):
            self._clock.after(time, self._frontends[place % len(self._frontends)].cancel_all)
        self._clock.run()
        self._check_at_rest()

    def admit(self, user: User) -> None:
        self._salts.update(dict.fromkeys(user.request_ids, user.spec.cache_salt))
        user.arrive(self._frontends[user.spec.client_index % len(self._frontends)])

    def new_user(self, spec: RequestSpec, when_over: Callable[[], None]) -> User:
        return User(spec, self._scenario, self._clock, when_over=when_over)

    def after(self, ticks: int, action: Callable[[], None]) -> None:
        self._clock.after(ticks, action)

    @property
    def is_over(self) -> bool:
        """Have all requests of the scenario ended? Those of streams do not count."""
        return all(user.is_over for user in self._users)

    # ---- the engine core's lives -------------------------------------------------------------------------------------

    def _start_engine(self) -> None:
        self._num_lives += 1
        incarnation = self._num_lives
        outputs = [self._link(f"{incarnation} to {f.client_index}", f.receive_outputs) for f in self._frontends]
        percent = self._scenario.duplicate_percent
        self._engine = SimulatedEngine(
            self._scenario,
            self._clock,
            self.counters,
            incarnation=incarnation,
            salt_of=self._salts.get,
            send=lambda client_index, data: outputs[client_index].send(data, self.counters, duplicate_percent=percent),
        )
        hello = handshake_codec().encode(EngineHello(PROTOCOL_VERSION, 0, incarnation))
        for link in self._hellos:
            link.send(hello, self.counters)

    def _lose_engine(self) -> None:
        if not self._engine.is_lost():
            self._engine.lose()
            self.counters["engine cores lost"] += 1
            # Not before the step is over that may be under way: events do not nest twice.
            self._clock.after(self._scenario.max_step + 1, self._start_engine)

    def _connector(self, client_index: int) -> Callable[[int], Callable[[EngineCoreRequestType, bytes], None]]:
        """How a front end reaches an incarnation. One that is dead hears nothing."""

        def connect(incarnation: int) -> Callable[[EngineCoreRequestType, bytes], None]:
            engine = self._engine
            link = self._link(
                f"{client_index} to {incarnation}",
                engine.receive,
                is_open=lambda: engine.incarnation == incarnation and not engine.is_lost(),
            )

            def send(kind: EngineCoreRequestType, payload: bytes) -> None:
                may_come_twice = kind is not EngineCoreRequestType.UTILITY
                link.send(
                    kind.value + payload,
                    self.counters,
                    duplicate_percent=self._scenario.duplicate_percent * may_come_twice,
                )

            return send

        return connect

    def _link(self, name: str, deliver: Callable[[bytes], None], *, is_open: Callable[[], bool] = lambda: True) -> Link:
        random = Random(f"{self._scenario.seed} {name}")
        link = Link(self._clock, random, max_delay=self._scenario.max_delay, deliver=deliver, is_open=is_open)
        self._links.append(link)
        return link

    # ---- at rest -----------------------------------------------------------------------------------------------------

    def _check_at_rest(self) -> None:
        users = [*self._users, *(user for stream in self._streams for user in stream.users)]
        for user in users:
            user.check_at_rest()
            self.counters[f"requests {user.end}"] += 1
        for frontend in self._frontends:
            frontend.check_at_rest()
        self._engine.check_at_rest()
        if any(link.num_under_way for link in self._links):
            raise Violation("e", "messages are under way at rest")


class RequestStream:
    """Keeps sending requests until those of the scenario have ended."""

    def __init__(self, world: World, spec: StreamSpec) -> None:
        self.users: list[User] = []
        self._world = world
        self._spec = spec
        self._random = Random(spec.name)
        self._num_open = 0

    def pump(self) -> None:
        if self._world.is_over:
            return
        if self._num_open < self._spec.keep:
            self._send()
        self._world.after(self._spec.every, self.pump)

    def _send(self) -> None:
        spec, random = self._spec, self._random
        user = self._world.new_user(
            RequestSpec(
                name=FIRST_STREAM_NAME * (1 + spec.name) + len(self.users),
                own=random.randint(1, spec.own) if spec.varies else spec.own,
                shared=spec.shared,
                max_tokens=random.randint(1, spec.max_tokens) if spec.varies else spec.max_tokens,
                priority=spec.priority,
                prompt_logprobs=spec.prompt_logprobs,
            ),
            self._ended,
        )
        self.users.append(user)
        self._num_open += 1
        self._world.admit(user)

    def _ended(self) -> None:
        self._num_open -= 1
