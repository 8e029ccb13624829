#include "ports/shared_block.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::ports {
namespace {

tl::unexpected<Error> system_failure(const char* what) {
  return fail(fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

struct alignas(cmsghdr) Control {
  std::array<std::uint8_t, CMSG_SPACE(sizeof(int))> bytes{};
};

}  // namespace

Result<SharedBlock> SharedBlock::create(std::size_t bytes) {
  Descriptor memfd(memfd_create("sluice-block", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return system_failure("memfd_create");
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) return system_failure("ftruncate");
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return system_failure("seal");
  return map(std::move(memfd), bytes);
}

Result<SharedBlock> SharedBlock::adopt(Descriptor memfd, std::size_t bytes) {
  struct stat status {};
  if (fstat(memfd.get(), &status) != 0) return system_failure("fstat");
  if (status.st_size != static_cast<off_t>(bytes)) {
    return fail(fmt::format("shared memory: {} bytes where {} were announced", status.st_size, bytes));
  }
  const int seals = fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return fail("shared memory: not sealed against shrinking");
  return map(std::move(memfd), bytes);
}

Result<SharedBlock> SharedBlock::map(Descriptor memfd, std::size_t bytes) {
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (start == MAP_FAILED) return system_failure("mmap");
  SharedBlock block;
  block.memfd_ = std::move(memfd);
  block.mapping_ = Mapping(static_cast<std::uint8_t*>(start), bytes);
  block.size_ = bytes;
  return block;
}

bool send_message(int socket, const std::string& text, int descriptor) {
  iovec vector{const_cast<char*>(text.data()), text.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

Arrival receive_message(int socket, Message& into) {
  std::array<char, kMaxMessage> bytes;
  iovec vector{bytes.data(), bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Arrival::kNothing;
  into.descriptor.close();
  const cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    into.descriptor = Descriptor(fd);
  }
  if (got <= 0) return Arrival::kGone;
  into.text.assign(bytes.data(), static_cast<std::size_t>(got));
  return Arrival::kMessage;
}

}  // namespace sluice::ports
