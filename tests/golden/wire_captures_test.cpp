// Every frame of real traffic parses, verifies, and comes out of our writers as it went in.
#include <gtest/gtest.h>

#include <map>

#include "golden/capture.h"
#include "wire/cm.h"
#include "wire/frame.h"
#include "wire/frame_editor.h"
#include "wire/icrc.h"
#include "wire/text.h"

namespace sluice::wire {
namespace {

using golden::FrameBytes;

class Captures : public testing::TestWithParam<std::filesystem::path> {
 protected:
  // The RoCE frames of the file; whatever else is there must be IGMP.
  std::vector<FrameBytes> roce_frames() const {
    std::vector<FrameBytes> frames;
    for (const FrameBytes& frame : golden::read_capture(GetParam())) {
      ParsedFrame parsed;
      const Verdict verdict = parse(frame, parsed);
      if (frame.size() > 23 && frame[23] == 2) {
        EXPECT_EQ(verdict, Verdict::kBadIpHeaderLength) << "IGMP has a router-alert option";
        continue;
      }
      EXPECT_EQ(to_string(verdict), to_string(Verdict::kOk)) << GetParam() << " frame " << frames.size();
      frames.push_back(frame);
    }
    return frames;
  }
};

std::string name_of(const testing::TestParamInfo<std::filesystem::path>& info) { return info.param.stem().string(); }
INSTANTIATE_TEST_SUITE_P(Rxe, Captures, testing::ValuesIn(golden::rxe_captures()), name_of);
INSTANTIATE_TEST_SUITE_P(ConnectX, Captures, testing::ValuesIn(golden::reference_captures()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Captures);

TEST(CapturesThere, AreAllThatWereMade) {
  std::size_t frames = 0;
  for (const auto& file : golden::rxe_captures()) frames += golden::read_capture(file).size();
  EXPECT_EQ(frames, 1063u);
}

TEST(CapturesThere, IncludeThoseOfRealNics) {
  std::size_t frames = 0;
  for (const auto& file : golden::reference_captures()) frames += golden::read_capture(file).size();
  if (frames == 0) GTEST_SKIP() << "no reference data";
  EXPECT_EQ(frames, 244u);
}

TEST_P(Captures, ParseAndVerify) {
  for (const FrameBytes& frame : roce_frames()) {
    ParsedFrame parsed;
    ASSERT_EQ(parse_and_verify(frame, parsed), Verdict::kOk);
    EXPECT_EQ(parsed.length, frame.size());
    EXPECT_NE(describe(frame).find("| icrc ok"), std::string::npos) << describe(frame);
  }
}

// Writes header H over a copy of where it stands: nothing may change.
template <class H>
void expect_rewrites(const std::uint8_t* p) {
  std::array<std::uint8_t, H::kSize> written;
  written.fill(0xEE);
  H::parse(p).write(written.data());
  EXPECT_TRUE(std::equal(written.begin(), written.end(), p)) << typeid(H).name();
}

template <class H>
void expect_rewrites_extended(const FrameBytes& frame, const ParsedFrame& parsed) {
  if (!parsed.traits().has(H::kExtended)) return;
  expect_rewrites<H>(frame.data() + parsed.extended_offset() + parsed.traits().offset_of(H::kExtended));
}

TEST_P(Captures, ComeOutOfEveryHeaderAsTheyWentIn) {
  for (const FrameBytes& frame : roce_frames()) {
    ParsedFrame parsed;
    ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
    expect_rewrites<EthernetHeader>(frame.data());
    expect_rewrites<Ipv4Header>(frame.data() + parsed.ip_offset);
    expect_rewrites<UdpHeader>(frame.data() + parsed.udp_offset());
    expect_rewrites<Bth>(frame.data() + parsed.bth_offset);
    expect_rewrites_extended<Reth>(frame, parsed);
    expect_rewrites_extended<Aeth>(frame, parsed);
    expect_rewrites_extended<AtomicEth>(frame, parsed);
    expect_rewrites_extended<MaskedAtomicEth>(frame, parsed);
    expect_rewrites_extended<AtomicAckEth>(frame, parsed);
    expect_rewrites_extended<ImmDt>(frame, parsed);
    expect_rewrites_extended<Ieth>(frame, parsed);
    expect_rewrites_extended<Deth>(frame, parsed);
  }
}

// Our template, told who speaks to whom, writes the frame that the NIC wrote; but NICs may number their IP packets.
TEST_P(Captures, AreWhatOurTemplateWrites) {
  for (const FrameBytes& frame : roce_frames()) {
    ParsedFrame parsed;
    ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
    const auto theirs = Ipv4Header::parse(frame.data() + parsed.ip_offset);
    const auto ethernet = EthernetHeader::parse(frame.data());
    const HeaderTemplate headers({.source_mac = ethernet.source,
                                  .destination_mac = ethernet.destination,
                                  .source = source_gid(frame.data(), parsed),
                                  .destination = destination_gid(frame.data(), parsed),
                                  .source_port = get_udp(frame.data(), parsed).source_port,
                                  .traffic_class = theirs.traffic_class,
                                  .hop_limit = theirs.ttl});
    FrameBytes ours = frame;
    const std::size_t transport = parsed.icrc_offset() - parsed.bth_offset;
    ASSERT_EQ(headers.write(ours.data(), transport), parsed.bth_offset);
    auto ip = Ipv4Header::parse(ours.data() + parsed.ip_offset);
    EXPECT_EQ(ip.fragment, theirs.fragment);
    ip.identification = theirs.identification;
    ip.write(ours.data() + parsed.ip_offset);
    ip.checksum = ipv4_checksum(ours.data() + parsed.ip_offset);
    ip.write(ours.data() + parsed.ip_offset);
    store_be(ours.data() + parsed.icrc_offset(), std::uint32_t{0});
    EXPECT_EQ(headers.seal(ours.data(), ours.size() - kIcrcSize), frame.size());
    ASSERT_EQ(ours, frame);
  }
}

TEST_P(Captures, GiveTheirCmMessagesBack) {
  for (const FrameBytes& frame : roce_frames()) {
    ParsedFrame parsed;
    ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
    if (parsed.destination != kCmQpn) continue;
    const auto mad = parse_cm(frame.data(), parsed);
    ASSERT_TRUE(mad);
    std::array<std::uint8_t, kMadSize> written;
    write_cm(written.data(), *mad);
    const ByteView original = payload(frame.data(), parsed);
    EXPECT_TRUE(std::equal(written.begin(), written.end(), original.begin(), original.end()));
  }
}

// Another PSN, QPN and route and back: constant-time patches must end where they began, on bytes that others summed.
TEST_P(Captures, SurviveEditsThereAndBack) {
  for (const FrameBytes& frame : roce_frames()) {
    FrameBytes edited = frame;
    ParsedFrame parsed;
    ASSERT_EQ(parse(frame, parsed), Verdict::kOk);
    const auto ethernet = EthernetHeader::parse(frame.data());
    const AddressVector there{.source_mac = ethernet.source,
                              .destination_mac = ethernet.destination,
                              .source = source_gid(frame.data(), parsed),
                              .destination = destination_gid(frame.data(), parsed),
                              .source_port = get_udp(frame.data(), parsed).source_port};
    const Psn psn = parsed.psn;
    const Qpn qpn = parsed.destination;
    FrameEditor away(edited.data(), parsed);
    away.set_route(AddressVector::reply_to(frame.data(), parsed));
    away.set_psn(psn + 0x123456);
    away.set_destination(Qpn(qpn.value ^ 0xABCDEF));
    away.commit();
    ParsedFrame again;
    ASSERT_EQ(parse_and_verify(edited, again), Verdict::kOk);
    ASSERT_NE(edited, frame);
    FrameEditor back(edited.data(), parsed);
    back.set_route(there);
    back.set_psn(psn);
    back.set_destination(qpn);
    back.commit();
    ASSERT_EQ(edited, frame);
  }
}

// The handshake of rping between two Linux machines, as tshark dissects it.
TEST(RxeHandshake, IsReadFieldByField) {
  const auto frames = golden::read_capture(SLUICE_SOURCE_DIR "/tests/golden/rxe/rping_cm.pcap");
  const auto message = [&](std::size_t i) {
    ParsedFrame parsed;
    EXPECT_EQ(parse(frames[i], parsed), Verdict::kOk);
    return parse_cm(frames[i].data(), parsed).value();
  };
  const CmMad first = message(0);
  EXPECT_EQ(first.transaction_id, 0x00000002550aade9u);
  const auto& req = std::get<CmReq>(first.message);
  EXPECT_EQ(req.local_comm_id, CommId(0xe9ad0a55));
  EXPECT_EQ(req.service_id, rdma_service(7174));
  EXPECT_EQ(req.local_qpn, Qpn(0x13));
  EXPECT_EQ(req.starting_psn, Psn(0xe98212));
  EXPECT_EQ(req.path_mtu, 5);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.local_cm_response_timeout, 0x14);
  EXPECT_EQ(req.primary.local_ack_timeout, 0x13);
  EXPECT_EQ(req.primary.hop_limit, 64);
  EXPECT_EQ(req.primary.local_gid.to_string(), "10.77.0.11");
  const auto ip = IpCmHeader::parse(req.private_data.data()).value();
  EXPECT_EQ(ip.source_port, 0x80d0);
  EXPECT_EQ(ip.source.to_string(), "10.77.0.11");
  EXPECT_EQ(ip.destination.to_string(), "10.77.0.12");

  const auto rep = std::get<CmRep>(message(1).message);
  EXPECT_EQ(rep.local_comm_id, CommId(0xe9423abe));
  EXPECT_EQ(rep.remote_comm_id, req.local_comm_id);
  EXPECT_EQ(rep.starting_psn, Psn(0x8ded4c));
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(std::get<CmRtu>(message(2).message).remote_comm_id, rep.local_comm_id);
  EXPECT_EQ(std::get<CmDreq>(message(39).message).remote_qpn, Qpn(0x13));
  EXPECT_EQ(std::get<CmDrep>(message(40).message).remote_comm_id, req.local_comm_id);
}

}  // namespace
}  // namespace sluice::wire
