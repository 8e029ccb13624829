#include "ports/shared_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

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
