#!/usr/bin/env python3
"""libcowbird against an engine that the test plays: late answers, engines that are replaced or silent, failures that it reports."""
import array
import ctypes
import mmap
import os
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

OK, NO_REGION, NO_SUCH_GROUP, REGION_IN_USE, UNREACHABLE, ENGINE_ABSENT, SYSTEM = 0, -1, -9, -10, -17, -32, -33
CHANNEL, ERRORS, PROGRESS = 4096, 256, 128  # in the block; in a channel


class Options(ctypes.Structure):
    _fields_ = [("engine", ctypes.c_char_p), ("threads", ctypes.c_uint32), ("entries", ctypes.c_uint32),
                ("request_bytes", ctypes.c_uint32), ("response_bytes", ctypes.c_uint32)]


class Completion(ctypes.Structure):
    _fields_ = [("request", ctypes.c_int64), ("status", ctypes.c_int32), ("reserved", ctypes.c_int32)]


def load(path):
    library = ctypes.CDLL(path)
    p, u16, u32, u64, i64 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
    for name, result, arguments in [
            ("open", p, [p]), ("close", None, [p]), ("thread", p, [p, u32]), ("last_error", ctypes.c_char_p, []),
            ("region_add", ctypes.c_int, [p, ctypes.c_char_p, u64, u64, ctypes.c_int]), ("region_remove", ctypes.c_int, [p, u16]), ("async_read", i64, [p, u16, u64, p, u32]),
            ("async_write", i64, [p, u16, p, u64, u32]), ("poll_create", ctypes.c_int, [p]), ("poll_destroy", ctypes.c_int, [p, ctypes.c_int]),
            ("poll_add", ctypes.c_int, [p, ctypes.c_int, i64]), ("poll_wait", ctypes.c_int, [p, ctypes.c_int, p, ctypes.c_int, i64]),
            ("collect", ctypes.c_int, [p, p, ctypes.c_int]), ("is_complete", ctypes.c_int, [p, i64]),
            ("engine_absent", ctypes.c_int, [p]), ("strerror", ctypes.c_char_p, [ctypes.c_int])]:
        function = getattr(library, "cowbird_" + name)
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


COWBIRD = load(os.path.abspath(sys.argv[1]))


class Engine:
    """Answers what it is asked after `delays[n]` seconds, moves nothing by itself, and says what the test makes it say."""

    def __init__(self, path, delays=None):
        self.path, self.delays, self.refusal, self.turns_away = path, delays or {}, None, None
        self.asked, self.accepted, self.block, self.connections, self.beat = 0, 0, None, [], 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.turns_away:
                time.sleep(0.01)
                connection.send(f"error {self.turns_away}".encode())
                connection.close()
                continue
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        while True:
            try:
                message, control, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4))
                if not message:
                    return
                for _, _, data in control:
                    descriptor = array.array("i", data)[0]
                    self.block = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
                    os.close(descriptor)
                number, self.asked = self.asked, self.asked + 1
                time.sleep(self.delays.get(number, 0))
                word = message.decode().split()
                answer = "ok" if word[0] == "instance" else f"region {word[1][-1]} 7 {word[2]} {word[3]}"
                connection.send((f"error {self.refusal}" if self.refusal else answer).encode())
            except OSError:
                return

    def kill(self):
        os.unlink(self.path)
        for end in [self.listener, *self.connections]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # the library has hung up already
                pass
            end.close()

    def publish(self, reads, writes, errors=()):
        for i, (request, status) in enumerate(errors):
            struct.pack_into("<QQ", self.block, CHANNEL + ERRORS + 16 * (1 + i), request, status)
        struct.pack_into("<Q", self.block, CHANNEL + ERRORS, len(errors))
        self.beat += 1
        struct.pack_into("<QQQQQ", self.block, CHANNEL + PROGRESS, reads, writes, reads + writes, self.beat, 1)

    def generation(self):
        return struct.unpack_from("<Q", self.block, CHANNEL + 16)[0]

    def region(self, i):
        return struct.unpack_from("<IIQQ", self.block, 64 + 32 * i)


class Library(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-")
        self.addCleanup(folder.cleanup)
        self.path = f"{folder.name}/cowbird.sock"
        self.bytes = ctypes.create_string_buffer(b"as before", 4096)
        self.done = (Completion * 8)()

    def engine(self, delays=None):
        engine = Engine(self.path, delays)
        self.addCleanup(lambda: os.path.exists(self.path) and engine.kill())
        return engine

    def open(self, region=True, **options):
        """An instance, its thread, and a poll group."""
        instance = COWBIRD.open(ctypes.byref(Options(engine=self.path.encode(), **options)))
        self.assertTrue(instance, COWBIRD.last_error())
        self.addCleanup(COWBIRD.close, instance)
        if region:
            self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 1 << 20, 0), 0)
        thread = COWBIRD.thread(instance, 0)
        return instance, thread, COWBIRD.poll_create(thread)

    def read(self, thread, group=None, length=8):
        request = COWBIRD.async_read(thread, 0, 0, self.bytes, length)
        self.assertGreater(request, 0)
        if group is not None:
            self.assertEqual(COWBIRD.poll_add(thread, group, request), 0)
        return request

    def wait(self, thread, group, timeout_us, most=8):
        begun = time.monotonic()
        return COWBIRD.poll_wait(thread, group, self.done, most, timeout_us), time.monotonic() - begun

    def test_a_late_answer_is_not_the_next_questions(self):
        engine = self.engine({1: 3.3})
        instance, _, _ = self.open(region=False)
        self.assertEqual(COWBIRD.region_add(instance, b"memory1", 4096, 4096, 0), SYSTEM)
        self.assertIn(b"does not answer", COWBIRD.last_error())
        time.sleep(0.6)  # it answers now
        self.assertEqual(COWBIRD.region_add(instance, b"memory2", 65536, 8192, 0), 0)
        self.assertEqual(engine.region(0), (2, 7, 65536, 8192))

    def test_regions_are_added_at_the_next_engine_too(self):
        engine = self.engine()
        instance, _, _ = self.open()
        engine.kill()
        again = self.engine()
        self.assertEqual(COWBIRD.region_add(instance, b"memory2", 0, 4096, 0), 1)
        self.assertEqual((again.accepted, again.region(1)[0]), (1, 2))

    def test_a_new_engine_is_found_by_every_call_that_finds_nothing(self):
        calls = {"collect": lambda thread, group, request: COWBIRD.collect(thread, self.done, 8),
                 "is_complete": lambda thread, group, request: COWBIRD.is_complete(thread, request),
                 "poll_wait without waiting": lambda thread, group, request: COWBIRD.poll_wait(thread, group, self.done, 8, 0),
                 "poll_wait": lambda thread, group, request: COWBIRD.poll_wait(thread, group, self.done, 8, 1),
                 "poll_wait of nothing": lambda thread, group, request: COWBIRD.poll_wait(thread, COWBIRD.poll_create(thread), self.done, 8, 1)}
        for name, call in calls.items():
            with self.subTest(name):
                engine = self.engine()
                _, thread, group = self.open()
                request = self.read(thread, group)
                engine.kill()
                again = self.engine()
                for _ in range(3000):
                    self.assertIn(call(thread, group, request), (0, ENGINE_ABSENT))
                    if again.asked:
                        break
                    time.sleep(0.001)
                self.assertEqual(again.accepted, 1)
                again.publish(1, 0)
                self.assertEqual(COWBIRD.is_complete(thread, request), 1)
                again.kill()

    def test_a_program_that_seldom_calls_finds_a_new_engine_too(self):
        engine = self.engine()
        _, thread, _ = self.open()
        self.read(thread)
        engine.kill()
        again = self.engine()
        for _ in range(5):
            self.assertEqual(COWBIRD.collect(thread, self.done, 8), 0)
            time.sleep(0.2)
        self.assertEqual(again.accepted, 1)

    def test_programs_without_groups_learn_that_the_engine_is_absent(self):
        engine = self.engine()
        _, thread, _ = self.open()
        requests = [self.read(thread), self.read(thread)]
        self.assertEqual((COWBIRD.collect(thread, self.done, 8), COWBIRD.engine_absent(thread)), (0, 0))
        engine.kill()
        time.sleep(1.2)
        self.assertEqual(COWBIRD.engine_absent(thread), ENGINE_ABSENT)
        self.assertIn(self.path.encode(), COWBIRD.last_error())
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), ENGINE_ABSENT)
        self.assertEqual(COWBIRD.is_complete(thread, requests[0]), 0)
        again = self.engine()
        time.sleep(0.2)
        self.assertEqual(COWBIRD.engine_absent(thread), 0, "one was found")
        while not again.asked:
            time.sleep(0.01)
        again.publish(1, 0)
        self.assertEqual((COWBIRD.collect(thread, self.done, 8), self.done[0].request), (1, requests[0]))
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 0)

    def test_an_engine_that_refuses_is_absent_and_says_why(self):
        ways = {"refusal": "protocol version 1; this engine speaks 2", "turns_away": "the engine serves 256 applications already"}
        for way, why in ways.items():
            with self.subTest(way):
                engine = self.engine()
                _, thread, group = self.open()
                request = self.read(thread, group)
                self.wait(thread, group, 1000)
                engine.kill()
                again = self.engine()
                setattr(again, way, why)
                count, took = self.wait(thread, group, 5_000_000)
                self.assertEqual(count, ENGINE_ABSENT)
                self.assertIn(f"{self.path} refuses: {why}".encode(), COWBIRD.last_error())
                self.assertLess(took, 4)
                time.sleep(0.2)
                self.assertEqual(COWBIRD.collect(thread, self.done, 8), ENGINE_ABSENT, "it refuses still")
                self.assertFalse(COWBIRD.open(ctypes.byref(Options(engine=self.path.encode()))))
                self.assertIn(why.encode(), COWBIRD.last_error())
                setattr(again, way, None)
                end = time.monotonic() + 10
                while self.wait(thread, group, 0)[0] == ENGINE_ABSENT and time.monotonic() < end:
                    time.sleep(0.05)
                again.publish(1, 0)
                self.assertEqual((self.wait(thread, group, -1)[0], self.done[0].request), (1, request))
                again.kill()

    def test_an_absent_engine_is_told_of_and_one_that_was_found_is_not_absent(self):
        engine = self.engine()
        _, thread, group = self.open()
        request = self.read(thread, group)
        self.assertEqual(self.wait(thread, group, 1000)[0], 0)
        engine.kill()
        time.sleep(1.2)
        self.assertEqual(self.wait(thread, group, -1)[0], ENGINE_ABSENT)
        empty = COWBIRD.poll_create(thread)
        self.assertEqual(self.wait(thread, empty, 1)[0], ENGINE_ABSENT)
        again = self.engine()
        time.sleep(0.2)
        threading.Timer(0.3, lambda: again.publish(1, 0)).start()
        count, took = self.wait(thread, group, -1)
        self.assertEqual((count, self.done[0].request), (1, request))
        self.assertLess(took, 1.5)

    def test_an_engine_that_is_there_and_looks_at_nothing_is_not_said_to_be_gone(self):
        engine = self.engine()
        _, thread, group = self.open()
        self.read(thread, group)
        self.assertEqual(self.wait(thread, group, -1)[0], ENGINE_ABSENT)
        self.assertIn(f"{self.path} is there, but nobody has looked at this thread's rings".encode(), COWBIRD.last_error())
        engine.kill()
        self.assertEqual(self.wait(thread, group, -1)[0], ENGINE_ABSENT)
        self.assertIn(f"no Cowbird engine at {self.path}".encode(), COWBIRD.last_error())

    def test_what_is_complete_is_told_of_when_the_engine_is_absent(self):
        engine = self.engine()
        _, thread, group = self.open()
        first, _ = self.read(thread, group), self.read(thread, group)
        engine.publish(1, 0)
        engine.kill()
        self.wait(thread, group, 0, 0)
        count, took = self.wait(thread, group, 10_000_000, 2)
        self.assertEqual((count, self.done[0].request), (1, first))
        self.assertLess(took, 5)
        self.assertEqual(self.wait(thread, group, -1, 2)[0], ENGINE_ABSENT)

    def test_an_engine_that_does_not_answer_keeps_nobody_waiting(self):
        engine = self.engine()
        _, thread, group = self.open()
        self.read(thread, group)
        self.wait(thread, group, 1000)
        engine.kill()
        silent = self.engine({0: 30})
        time.sleep(0.2)
        for _ in range(20):
            count, took = self.wait(thread, group, 1)
            self.assertEqual(count, 0)
            self.assertLess(took, 0.5)
            time.sleep(0.02)
        self.assertEqual(silent.accepted, 1)

    def test_what_failed_is_not_said_to_be_done(self):
        engine = self.engine()
        _, thread, group = self.open()
        failed, good = self.read(thread, group), self.read(thread, group)
        self.assertEqual(COWBIRD.is_complete(thread, failed), 0)
        engine.publish(2, 0, [(failed, -UNREACHABLE)])
        self.assertEqual(COWBIRD.is_complete(thread, failed), UNREACHABLE)
        self.assertEqual(COWBIRD.is_complete(thread, good), 1)
        self.assertEqual(self.wait(thread, group, 0)[0], 2)
        self.assertEqual([c.status for c in self.done[:2]], [UNREACHABLE, OK])

    def test_collect_tells_of_what_is_complete_whoever_asked_for_it(self):
        engine = self.engine()
        _, thread, _ = self.open(entries=4)
        requests = [self.read(thread), self.read(thread)]
        engine.publish(2, 0)
        self.assertEqual(COWBIRD.is_complete(thread, requests[0]), 1)
        requests.append(self.read(thread))
        engine.publish(3, 0)
        self.assertEqual(COWBIRD.collect(thread, self.done, 1), 1)
        self.assertEqual(self.done[0].request, requests[0])
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 2)
        self.assertEqual([c.request for c in self.done[:2]], requests[1:])
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 0)
        # Who never collects is owed no more than the last ones.
        for i in range(4, 14):
            request = self.read(thread)
            engine.publish(i, 0, [(request, -UNREACHABLE)] if i == 13 else ())
            self.assertEqual(COWBIRD.is_complete(thread, request), UNREACHABLE if i == 13 else 1)
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 4)
        self.assertEqual([c.status for c in self.done[:4]], [OK, OK, OK, UNREACHABLE])

    def test_every_number_has_a_sentence_of_its_own(self):
        for number, sentence in [(0, b"done"), (1, b"done"), (7, b"done"), (-1, b"no region"), (-21, b"1 MiB"), (-33, b"last_error"),
                                 (-256, b"unknown"), (-257, b"unknown"), (-2**31, b"unknown"), (2**31 - 1, b"done")]:
            self.assertIn(sentence, COWBIRD.strerror(number), number)

    def test_says_what_to_do_without_a_region_left(self):
        self.engine()
        instance, _, _ = self.open()
        for i in range(1, 64):
            self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 4096, 0), i)
        self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 4096, 0), SYSTEM)
        self.assertIn(b"cowbird_region_remove", COWBIRD.last_error())

    def test_a_region_of_no_name_is_an_error(self):
        self.engine()
        instance, _, _ = self.open()
        self.assertEqual(COWBIRD.region_add(instance, None, 0, 4096, 0), SYSTEM)
        self.assertIn(b"without a name", COWBIRD.last_error())
        for name in (b"", b"memory 1", b"m" * 5000):
            self.assertEqual(COWBIRD.region_add(instance, name, 0, 4096, 0), SYSTEM)
            self.assertIn(b"is no name of a memory node or region", COWBIRD.last_error())
        self.assertEqual(COWBIRD.region_add(instance, b"m" * 254 + b"1", 0, 4096, 0), 1)

    def test_flags_that_there_are_not_are_refused(self):
        self.engine()
        instance, _, _ = self.open()
        for flags in (2, -1):
            self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 4096, flags), SYSTEM)
            self.assertIn(b"COWBIRD_READ_ONLY_REGION", COWBIRD.last_error())
        self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 4096, 1), 1)

    def test_the_id_of_a_group_that_was_destroyed_is_used_again(self):
        engine = self.engine()
        _, thread, group = self.open()
        other = COWBIRD.poll_create(thread)
        request = self.read(thread, group)
        self.assertEqual(COWBIRD.poll_destroy(thread, group), OK)
        self.assertEqual(COWBIRD.poll_create(thread), group)
        engine.publish(1, 0)
        self.assertEqual(self.wait(thread, group, 0)[0], 0, "it is a group of its own")
        self.assertNotIn(COWBIRD.poll_create(thread), (group, other))
        self.assertEqual(COWBIRD.is_complete(thread, request), 1)

    def test_a_region_that_is_given_back_makes_room_for_another(self):
        engine = self.engine()
        instance, thread, _ = self.open()
        for i in range(1, 64):
            self.assertEqual(COWBIRD.region_add(instance, b"memory1", 0, 4096, 0), i)
        self.read(thread)
        self.assertEqual(COWBIRD.region_remove(instance, 0), REGION_IN_USE)
        engine.publish(1, 0)  # complete, though nobody has asked
        self.assertEqual(COWBIRD.region_remove(instance, 0), OK)
        self.assertEqual([COWBIRD.region_remove(instance, i) for i in (0, 64)], [NO_REGION] * 2)
        self.assertEqual(engine.region(0)[3], 0)
        self.assertEqual(COWBIRD.async_read(thread, 0, 0, self.bytes, 8), NO_REGION)
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 1)
        self.assertEqual(COWBIRD.region_add(instance, b"memory2", 65536, 8192, 0), 0)
        self.assertEqual((engine.region(0)[0], engine.generation()), (2, 66))
        self.read(thread)

    def test_a_request_as_long_as_its_ring_is_taken_when_the_ring_is_empty(self):
        engine = self.engine()
        _, thread, _ = self.open(request_bytes=1024, response_bytes=1024)
        self.read(thread, length=512)
        engine.publish(1, 0)
        self.assertEqual(COWBIRD.collect(thread, self.done, 8), 1)
        self.read(thread, length=1024)

    def test_no_room_for_completions_is_no_reason_to_wait(self):
        self.engine()
        _, thread, group = self.open()
        self.read(thread, group)
        for most in (0, -1):
            self.assertEqual(self.wait(thread, group, -1, most)[0], 0)
        self.assertEqual(self.wait(thread, 77, 0)[0], NO_SUCH_GROUP)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
