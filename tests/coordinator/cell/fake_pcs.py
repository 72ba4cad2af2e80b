"""PCs of a cell that do as they are told, in virtual time, and their coordinator's driver."""

from dataclasses import dataclass, field

from molink.control.messages.cell import (
    CardFacts,
    CellFacts,
    CellOrder,
    EchoesTold,
    LeaseHeld,
    LenderFacts,
    LenderOrder,
)
from molink.coordinator.cell.cards import LendingCards, orders_to_pcs
from molink.coordinator.cell.driver import CellDriver
from molink.coordinator.cell.pairs import pair_of
from molink.coordinator.cell.values import PcSeen, RoomWanted

ANNA, BEN, CARL = "anna" * 4, "benn" * 4, "carl" * 4
MB = 10**6
WIRE, WIFI = (0.2,) * 20, (0.2,) * 15 + (4.0,) * 5


@dataclass
class FakePc:
    """Agent of one PC, without its process that lends."""

    room_bytes: int = 0
    started: int = 100
    is_here: bool = True
    refuses: bool = False
    echo_ms: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Echoes of each other PC; nobody answers where there are none."""
    allowed: dict[int, int] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    """Bytes that stages hold here, by lease."""
    ended: set[int] = field(default_factory=set)
    echoes: dict[str, EchoesTold] = field(default_factory=dict)
    serves: bool = False
    own_room_bytes: int = 0
    card: "FakePc | None" = None
    """Its card that lends."""
    bytes_per_s: float = 400e9
    """KV that it attends to, as a card."""

    def take(self, order: LenderOrder) -> None:
        if self.card is not None and isinstance(order, CellOrder):
            self.card.take(order.card or LenderOrder())
        self.serves = order.serves
        if not order.serves:
            self.allowed.clear()
        for lease in order.end:
            self.allowed.pop(lease, None)
        self.ended &= {one.lease for one in order.allow}
        for one in order.allow:
            left = self.room_bytes - sum(self.allowed.values())
            if one.lease in self.allowed:
                self.allowed[one.lease] = min(one.size_bytes, self.allowed[one.lease])
                continue
            if one.size_bytes > left or (self.refuses and one.size_bytes):
                self.ended.add(one.lease)
            elif one.lease not in self.ended:
                self.allowed[one.lease], self.keys[one.lease] = one.size_bytes, one.key
        for echo in order.echoes if isinstance(order, CellOrder) else ():
            told = {"lender": echo.lender, "round": echo.round}
            self.echoes[echo.lender] = EchoesTold(
                **told, milliseconds=self.echo_ms.get(echo.lender, ())
            )

    def take_back(self) -> None:
        """As its owner does, by a game."""
        self.room_bytes = 0
        self.ended |= self.allowed.keys()
        self.allowed.clear()

    def restart(self) -> None:
        self.started, self.allowed = self.started + 1, {}

    @property
    def facts(self) -> CellFacts:
        is_open = self.serves and self.room_bytes > 0
        return CellFacts(
            started=self.started,
            memory_bytes=self.room_bytes,
            cores=4 if self.room_bytes else 0,
            own_room_bytes=self.own_room_bytes,
            port=4000 if is_open else 0,
            incarnation=self.started if is_open else 0,
            leases=tuple(
                LeaseHeld(lease=one, size_bytes=size, held_bytes=self.held.get(one, 0))
                for one, size in self.allowed.items()
            ),
            ended=tuple(self.ended),
            echoes=tuple(self.echoes.values()),
            host="127.0.0.1",
            card=self.card.card_facts if self.card is not None else None,
        )

    @property
    def card_facts(self) -> CardFacts:
        told = self.facts
        fields = {name: getattr(told, name) for name in LenderFacts.model_fields}
        fields["port"] = 5000 if told.port else 0
        return CardFacts(**fields, device="cuda:1", bytes_per_s=self.bytes_per_s)


@dataclass
class World:
    """Cluster of these PCs, in steps of half a second."""

    pcs: dict[str, FakePc]
    pairs: set[tuple[str, str]] = field(default_factory=set)
    now: float = 1000.0
    cards: LendingCards = field(default_factory=LendingCards)
    driver: CellDriver = field(init=False)

    def __post_init__(self) -> None:
        self.start_coordinator()

    def start_coordinator(self, next_lease: int = 1000) -> None:
        keys = iter(f"{number:064x}" for number in range(10**6))
        self.driver = CellDriver(next_lease, lambda: next(keys), started_at=self.now)

    def confirm(self, one: str, other: str) -> None:
        self.pairs.add(pair_of(one, other))

    def run(self, seconds: float) -> None:
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            seen = {
                name: PcSeen(pc.facts, {other: "10.0.0.2" for other in self.pcs if other != name})
                for name, pc in self.pcs.items()
                if pc.is_here
            }
            found = self.cards.seen(seen)
            orders = self.driver.tick(found, set(self.cards.pairs(self.pairs)), self.now)
            for name, order in orders_to_pcs(orders).items():
                if name in self.pcs and self.pcs[name].is_here:
                    self.pcs[name].take(order)

    def borrow(self, pc: str, tokens: int = 1600, seconds: float = 10.0, **changes):
        """What a stage on a PC gets that lacks room for so many tokens."""
        figures = {"token_bytes": 1000, "layers": 8, "row_bytes": 16_000, "slower_s": 0.03}
        self.driver.want(RoomWanted(pc, pc, tokens, **(figures | changes)))
        self.run(seconds)
        return self.driver.outcome(pc)

    def lent(self, pc: str) -> dict[int, int]:
        """Leases of a PC but those for echoes."""
        return {number: size for number, size in self.pcs[pc].allowed.items() if size}


def two_pcs(**lender) -> World:
    """Anna, who lends nothing, and Ben, who lends 4 MB; confirmed, and as near as by a wire."""
    ben = FakePc(**({"room_bytes": 4 * MB} | lender))
    world = World({ANNA: FakePc(echo_ms={BEN: WIRE}), BEN: ben})
    world.confirm(ANNA, BEN)
    return world
