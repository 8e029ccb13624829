#include "ports/shared_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "ports/unix_socket.h"

namespace sluice::ports {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds);
    a = Descriptor(fds[0]);
    b = Descriptor(fds[1]);
  }
  Descriptor a, b;
};

TEST(SharedBlock, TwoProcessesSeeTheSameBytes) {
  auto made = SharedBlock::create(8192);
  ASSERT_TRUE(made) << made.error().message;
  Pair pair;
  ASSERT_TRUE(send_message(pair.a.get(), "here", made->descriptor()));
  Message message;
  ASSERT_EQ(receive_message(pair.b.get(), message), Arrival::kMessage);
  EXPECT_EQ(message.text, "here");
  auto adopted = SharedBlock::adopt(std::move(message.descriptor), 8192);
  ASSERT_TRUE(adopted) << adopted.error().message;
  EXPECT_NE(adopted->bytes().data(), made->bytes().data());
  made->bytes()[5000] = 77;
  EXPECT_EQ(adopted->bytes()[5000], 77);
}

TEST(SharedBlock, RefusesAnotherSizeAndWhatIsNotSealed) {
  auto made = SharedBlock::create(8192);
  ASSERT_TRUE(made);
  EXPECT_THAT(SharedBlock::adopt(Descriptor(dup(made->descriptor())), 4096).error().message,
              testing::HasSubstr("8192 bytes where 4096 were announced"));
  Descriptor loose(memfd_create("loose", 0));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  EXPECT_THAT(SharedBlock::adopt(std::move(loose), 4096).error().message, testing::HasSubstr("not sealed"));
}

// Sends a message with `count` descriptors.
void send_with(int socket, std::size_t count) {
  char text[] = "here";
  iovec vector{text, sizeof text};
  alignas(cmsghdr) std::array<std::uint8_t, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  const std::vector<int> all(count, socket);
  std::memcpy(CMSG_DATA(header), all.data(), count * sizeof(int));
  ASSERT_EQ(sendmsg(socket, &message, 0), static_cast<ssize_t>(sizeof text));
}

TEST(SharedBlock, OfManyDescriptorsNoneIsKept) {
  Pair pair;
  const auto next_free = [] { return Descriptor(dup(STDERR_FILENO)).get(); };
  for (const std::size_t count : {1u, 2u, 3u, 8u}) {
    const int before = next_free();
    send_with(pair.a.get(), count);
    {
      Message message;
      EXPECT_EQ(receive_message(pair.b.get(), message), count == 1 ? Arrival::kMessage : Arrival::kGone) << count;
      EXPECT_EQ(static_cast<bool>(message.descriptor), count == 1) << count;
    }
    EXPECT_EQ(next_free(), before) << count;
  }
}

TEST(SharedBlock, MessagesKeepTheirBoundsAndAnEndIsNoticed) {
  Pair pair;
  Message message;
  EXPECT_EQ(receive_message(pair.b.get(), message), Arrival::kNothing);
  ASSERT_TRUE(send_message(pair.a.get(), "one"));
  ASSERT_TRUE(send_message(pair.a.get(), "two"));
  EXPECT_EQ(receive_message(pair.b.get(), message), Arrival::kMessage);
  EXPECT_EQ(message.text, "one");
  EXPECT_FALSE(message.descriptor);
  EXPECT_EQ(receive_message(pair.b.get(), message), Arrival::kMessage);
  EXPECT_EQ(message.text, "two");
  pair.a.close();
  EXPECT_EQ(receive_message(pair.b.get(), message), Arrival::kGone);
  EXPECT_FALSE(send_message(pair.b.get(), "three"));
}

}  // namespace
}  // namespace sluice::ports
