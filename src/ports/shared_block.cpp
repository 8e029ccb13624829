#include "ports/shared_block.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ports/unix_socket.h"

namespace sluice::ports {

Result<SharedBlock> SharedBlock::create(std::size_t bytes) {
  auto memfd = make_sealed_memory("sluice-block", bytes);
  if (!memfd) return tl::unexpected(memfd.error());
  return map(std::move(*memfd), bytes);
}

Result<SharedBlock> SharedBlock::adopt(Descriptor memfd, std::size_t bytes) {
  if (auto good = check_sealed_memory(memfd.get(), bytes); !good) return tl::unexpected(good.error());
  return map(std::move(memfd), bytes);
}

Result<SharedBlock> SharedBlock::map(Descriptor memfd, std::size_t bytes) {
  std::uint8_t* const start = map_shared(nullptr, bytes, memfd.get(), 0);
  if (start == nullptr) return fail(fmt::format("shared memory: mmap: {}", std::strerror(errno)));
  SharedBlock block;
  block.memfd_ = std::move(memfd);
  block.mapping_ = Mapping(start, bytes);
  block.size_ = bytes;
  return block;
}

bool send_message(int socket, const std::string& text, int descriptor) {
  return send_with_descriptor(socket, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, descriptor);
}

Arrival receive_message(int socket, Message& message) {
  std::array<std::uint8_t, kMaxMessage> bytes;
  const std::ptrdiff_t got = receive_with_descriptor(socket, bytes, message.descriptor);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Arrival::kNothing;
  if (got <= 0) return Arrival::kGone;
  message.text.assign(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(got));
  return Arrival::kMessage;
}

}  // namespace sluice::ports
