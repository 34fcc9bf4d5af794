"""Attacks on services of the host and of the network. What the page listens on is the only target."""

from __future__ import annotations

from benchmarks.attacks.parts import LEVELS, Attack


def network(name: str, must: str, program: str, levels: tuple[str, ...] = LEVELS) -> Attack:
    return Attack("network", name, must, program, levels=levels)


TABLE = (
    network(
        "connects to services of the loopback",
        "the host's listeners see no connection",
        """
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"),
                                (socket.AF_INET6, "::ffff:127.0.0.1")):
            must_fail(address, lambda: socket.socket(family).connect((address, facts["tcp"])))
        tried()
        """,
    ),
    network(
        "connects to the addresses of the host",
        "the host's listeners see no connection",
        """
        for address in facts["addresses"]:
            must_fail(address, lambda: socket.create_connection((address, facts["tcp"]), timeout=0.5))
        tried()
        """,
    ),
    network(
        "sends datagrams to the host",
        "the host's socket receives none",
        """
        for address in ("127.0.0.1", *facts["addresses"]):
            try:
                one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                one.sendto(b"of a guest", (address, facts["udp"]))  # to its own loopback
            except OSError:
                pass
        tried()
        """,
    ),
    network(
        "has a route to the outside",
        "there is none",
        """
        for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "169.254.169.254"),
                                (socket.AF_INET6, "2001:db8::1")):
            def connect():
                socket.socket(family, socket.SOCK_DGRAM).connect((address, 9))  # sends nothing
            must_fail(address, connect)
        tried()
        """,
    ),
    network(
        "broadcasts",
        "there is no network to broadcast to",
        """
        def send(address):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            one.connect((address, 9))
        must_fail("broadcast", send, "255.255.255.255")
        must_fail("multicast", send, "224.0.0.251")
        tried()
        """,
    ),
    network(
        "asks for names",
        "no name but its own resolves",
        """
        for name in ("name.invalid", "example.org", "metadata.google.internal"):
            must_fail(name, socket.getaddrinfo, name, 80)
        for address in ("127.0.0.53", "127.0.0.1"):
            def ask():
                one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                one.settimeout(0.3)
                one.connect((address, 53))
                one.send(bytes.fromhex("000101000001000000000000076578616d706c65036f72670000010001"))
                one.recv(512)
            must_fail(f"DNS at {address}", ask)
        tried()
        """,
    ),
    network(
        "opens sockets to the hypervisor",
        "there is no vsock",
        """
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            must_fail("vsock", socket.socket, 40, kind)  # opened only: nothing is sent to the hypervisor
        tried()
        """,
    ),
    network(
        "opens raw and packet sockets",
        "no socket reads or makes packets",
        """
        for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 768), (17, 2, 768), (44, 3, 0)):
            must_fail(f"{family} {kind} {protocol}", socket.socket, family, kind, protocol)
        tried()
        """,
    ),
    network(
        "opens sockets of every other family",
        "only local and internet sockets and netlink exist",
        """
        for family in range(64):
            if family not in (1, 2, 10, 16):
                for kind in (1, 2, 3, 5):
                    must_fail(f"family {family}", socket.socket, family, kind, 0)
        tried()
        """,
    ),
    network(
        "changes interfaces, routes and filters by netlink",
        "no change is accepted, and no protocol reads the host's sockets",
        """
        for protocol in range(1, 32):
            if protocol != 15:
                must_fail(f"netlink {protocol}", socket.socket, 16, 3, protocol)
        def ask(kind, body):
            one = socket.socket(16, 3, 0)
            one.settimeout(0.5)
            one.send(struct.pack("=IHHII", 16 + len(body), kind, 5, 1, 0) + body)
            length, kind, _, _, _, error = struct.unpack("=IHHIIi", one.recv(4096)[:20])
            if kind == 2 and error:
                raise OSError(-error, "netlink")
        name = struct.pack("=HH", 16, 3) + b"of-a-guest0\\0" + struct.pack("=HHHH", 12, 18, 8, 1) + b"dumm"
        must_fail("new link", ask, 16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + name)
        must_fail("loopback down", ask, 16, struct.pack("=BxHiII", 0, 0, 1, 0, 1))
        must_fail("new address", ask, 20, struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH4s", 8, 2, b"abcd"))
        def uevent():
            one = socket.socket(16, 2, 15)
            one.sendto(b"add@/devices/x", (0, 1))
        must_fail("device event", uevent)
        tried()
        """,
    ),
    network(
        "connects to an abstract socket of the host",
        "the host's listener sees no connection",
        """
        def connect(kind, name):
            one = socket.socket(socket.AF_UNIX, kind)
            one.connect("\\0" + name)
            one.send(b"of a guest")
        must_fail("stream", connect, socket.SOCK_STREAM, facts["abstract"])
        must_fail("datagram", connect, socket.SOCK_DGRAM, facts["abstract_datagram"])
        tried()
        """,
    ),
    network(
        "connects to a socket in a folder of the host",
        "the host's listener sees no connection",
        """
        def connect(path):
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            one.send(b"of a guest")
        must_fail("socket", connect, facts["socket"])
        tried()
        """,
        ("namespaces",),
    ),
    network(
        "listens where another desktop's programs look",
        "it gets no connection of the other desktop",
        """
        listeners = []
        for name in (f"/tmp/.X11-unix/X{facts['neighbor_display']}", f"/tmp/.X11-unix/X{facts['display']}"):
            try:
                one = socket.socket(socket.AF_UNIX)
                one.bind("\\0" + name)
                one.listen()
                listeners.append(one)
            except OSError:
                pass
        try:
            X()
        except OSError:
            pass
        if facts["level"] == "plain" and listeners:
            reached("the names of X servers")
        tried()
        """,
    ),
    network(
        "lets the X server connect for it",
        "the host's listeners see no connection",
        """
        x = X()
        for path in (f"tcp/127.0.0.1:{facts['tcp']}", f"inet/127.0.0.1:{facts['tcp']}", f"unix/{facts['socket']}",
                     f"tcp/localhost:{facts['tcp']}/all", f"decnet/127.0.0.1::{facts['tcp']}"):
            name = path.encode()
            x.send(51, 0, struct.pack("<HxxB", 1, len(name)) + name)
            x.sync()
        x.send(45, 0, struct.pack("<IHxx", x.new(), 5) + b"fixed")
        x.sync()
        tried()
        """,
    ),
    network(
        "opens the port of a service that its task does not name",
        "there is no proxy without destinations",
        """
        must_fail("proxy", lambda: socket.create_connection(("127.0.0.1", 3128), timeout=0.5))
        tried()
        """,
    ),
)
