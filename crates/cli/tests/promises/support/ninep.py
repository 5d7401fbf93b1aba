"""A 9P client that does what it is told and nothing by itself. What the server refuses is an OSError."""

import os
import socket
import struct


def text(value):
    value = os.fsencode(value)
    return struct.pack('<H', len(value)) + value


class NinepClient:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.call(100, struct.pack('<I', 65536) + text('9P2000.L'), 0xffff)
        self.call(104, struct.pack('<II', 0, 0xffffffff) + text('') + text('') + struct.pack('<I', os.getuid()))
        self.last = 0

    def receive(self, count):
        got = b''
        while len(got) < count:
            part = self.socket.recv(count - len(got))
            if not part:
                raise SystemExit('the server hung up')
            got += part
        return got

    def call(self, kind, body, tag=1):
        self.socket.sendall(struct.pack('<IBH', 7 + len(body), kind, tag) + body)
        size, answer, _ = struct.unpack('<IBH', self.receive(7))
        body = self.receive(size - 7)
        if answer == 7:
            number = struct.unpack('<I', body)[0]
            raise OSError(number, os.strerror(number))
        assert answer == kind + 1, (kind, answer)
        return body

    def walk(self, *names):
        self.last += 1
        self.call(110, struct.pack('<IIH', 0, self.last, len(names)) + b''.join(map(text, names)))
        return self.last

    def open(self, fid, flags=0):
        self.call(12, struct.pack('<II', fid, flags))

    def create(self, name, mode=0o644):
        return self.create_in(self.walk(), name, mode)

    def create_in(self, fid, name, mode=0o644):
        self.call(14, struct.pack('<I', fid) + text(name) + struct.pack('<III', os.O_RDWR, mode, 0))
        return fid

    def make_node(self, name, mode, major=0, minor=0):
        self.call(18, struct.pack('<I', 0) + text(name) + struct.pack('<IIII', mode, major, minor, 0))

    def size(self, fid):
        return struct.unpack_from('<Q', self.call(24, struct.pack('<IQ', fid, 0x7ff)), 49)[0]

    def read(self, fid, offset=0, count=60000):
        return self.call(116, struct.pack('<IQI', fid, offset, count))[4:]

    def write(self, fid, data, offset=0):
        self.call(118, struct.pack('<IQI', fid, offset, len(data)) + data)

    def sync(self, fid):
        self.call(50, struct.pack('<II', fid, 0))

    def rename(self, old, new):
        self.call(74, struct.pack('<I', 0) + text(old) + struct.pack('<I', 0) + text(new))

    def clunk(self, fid):
        self.call(120, struct.pack('<I', fid))
