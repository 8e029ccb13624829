#include "wire/opcode.h"

#include <gtest/gtest.h>

#include <map>

#include "wire/bth.h"

namespace sluice::wire {
namespace {

TEST(Opcodes, AreThoseThatIbtaLists) {
  std::map<Transport, int> opcodes;
  for (unsigned code = 0; code < 256; ++code) {
    const OpcodeTraits& traits = opcode_traits(static_cast<std::uint8_t>(code));
    if (!traits.valid || code == 0x18 || code == 0x81) continue;
    ++opcodes[traits.transport];
    const std::map<Transport, unsigned> high_bits = {{Transport::kRc, 0}, {Transport::kUc, 1}, {Transport::kUd, 3}};
    EXPECT_EQ(high_bits.at(traits.transport), code >> 5) << code;
  }
  EXPECT_EQ(opcodes[Transport::kRc], 23);  // 0x00 to 0x17 without the reserved 0x15
  EXPECT_EQ(opcodes[Transport::kUc], 12);
  EXPECT_EQ(opcodes[Transport::kUd], 2);
  EXPECT_FALSE(opcode_traits(std::uint8_t{0x15}).valid);
}

// UC is RC without READs, atomics and acknowledgements: the same low five bits mean the same.
TEST(Opcodes, MeanTheSameInUcAsInRc) {
  for (unsigned low = 0; low < 0x0C; ++low) {
    const OpcodeTraits& rc = opcode_traits(static_cast<std::uint8_t>(low));
    const OpcodeTraits& uc = opcode_traits(static_cast<std::uint8_t>(0x20 | low));
    EXPECT_EQ(rc.kind, uc.kind);
    EXPECT_EQ(rc.position, uc.position);
    EXPECT_EQ(rc.extended, uc.extended);
    EXPECT_EQ(rc.name.substr(3), uc.name.substr(3));
  }
}

TEST(Opcodes, SayWhichHeadersFollowAndWhere) {
  const OpcodeTraits& write = opcode_traits(Opcode::kRcWriteOnlyImmediate);
  EXPECT_TRUE(write.has(Extended::kReth) && write.has(Extended::kImmDt));
  EXPECT_EQ(write.extended_length, 20);
  EXPECT_EQ(write.offset_of(Extended::kReth), 0u);
  EXPECT_EQ(write.offset_of(Extended::kImmDt), 16u);
  EXPECT_EQ(opcode_traits(Opcode::kRcAtomicAcknowledge).offset_of(Extended::kAtomicAckEth), 4u);
  EXPECT_EQ(opcode_traits(Opcode::kUdSendOnlyImmediate).offset_of(Extended::kImmDt), 8u);
  EXPECT_EQ(opcode_traits(Opcode::kRcMaskedCompareSwap).extended_length, 44);
  EXPECT_EQ(opcode_traits(Opcode::kRcReadResponseMiddle).extended_length, 0);
  EXPECT_EQ(opcode_traits(Opcode::kCnp).extended_length, 16);
}

TEST(Opcodes, TellRequestsFromAnswers) {
  EXPECT_TRUE(opcode_traits(Opcode::kRcReadRequest).is_request);
  EXPECT_TRUE(opcode_traits(Opcode::kUdSendOnly).is_request);
  EXPECT_FALSE(opcode_traits(Opcode::kRcReadResponseOnly).is_request);
  EXPECT_FALSE(opcode_traits(Opcode::kRcAcknowledge).is_request);
  EXPECT_FALSE(opcode_traits(Opcode::kCnp).is_request);
  EXPECT_TRUE(opcode_traits(Opcode::kRcFetchAdd).is_atomic());
  EXPECT_FALSE(opcode_traits(Opcode::kRcFetchAdd).has_payload);
}

}  // namespace
}  // namespace sluice::wire
