// The UNIX socket over which two processes agree on a shared-memory cable, wake each other, and notice each other's death.
//
// Protocol: whoever listens sends one hello of 16 bytes with the region's memfd: magic (8), version (4), bytes of a ring (4),
//           little-endian. After it any byte in either direction means "wake up"; end of file means that the peer is gone.
//           A wake-up is a byte here, not an eventfd: its sender and receiver say MSG_DONTWAIT themselves, whereas
//           an eventfd's O_NONBLOCK belongs to both processes and a mad peer could take it away.
// Trust:    the hello is checked before it is used; a wake-up costs its receiver one look at its ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "ports/descriptor.h"
#include "ports/shm_region.h"

namespace sluice::ports {

enum class UnixKind : std::uint8_t { kStream, kMessages };
// Listens at `path`. A socket file that a dead process left there is replaced, a living one is an error.
Result<Descriptor> listen_unix(const std::string& path, UnixKind kind = UnixKind::kStream);
// Whether a living process listens there, though it may be stopped.
bool is_listened_at(const std::string& path, UnixKind kind = UnixKind::kStream);
// Connects without waiting; the listener need not have accepted yet.
Result<Descriptor> connect_unix(const std::string& path, UnixKind kind = UnixKind::kStream);

// Sends bytes, and a descriptor with them unless it is -1. False: the peer is gone, or takes none now.
bool send_with_descriptor(int socket, ByteView bytes, int descriptor);
// As recv() without waiting: how many, 0 at the end, negative with errno. `descriptor` becomes the one that came along, or none;
// more than one is EPROTO, and none of them is kept.
std::ptrdiff_t receive_with_descriptor(int socket, MutableBytes bytes, Descriptor& descriptor);

// Makes a region and sends it. Fails when the peer is gone already.
Result<ShmRegion> send_hello(int socket, std::size_t ring_bytes);

enum class HelloState : std::uint8_t { kPending, kReceived, kRefused };
// Looks whether the hello has come; kReceived fills `region`, kRefused: end of file, or it was none.
HelloState receive_hello(int socket, ShmRegion& region);

enum class PeerState : std::uint8_t { kAlive, kGone };
void ring_peer(int socket);
// Takes in the wake-ups that have come.
PeerState drain_rings(int socket);

}  // namespace sluice::ports
