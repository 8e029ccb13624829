// rdma_cm's conversations again, with our connection manager in the place of either side: Linux over Soft-RoCE, Linux over ConnectX.
//
// What a side is free to choose (its communication id, QPN, PSN, port, time-outs) is taken from the capture where our API lets it be
// chosen; what is left must be the same field by field:
//  - our REQ carries a flow label made from its random port, as Linux does, and a random communication id and transaction;
//  - our REP says how late our own NIC may acknowledge (target ACK delay);
//  - rxe sets the ACK request bit on datagrams, where it means nothing: we and ConnectX do not.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden/capture.h"
#include "rc/adapter.h"
#include "rc/cm_codes.h"
#include "rc/connection_manager.h"
#include "wire/cm.h"

namespace sluice::rc {
namespace {

using golden::FrameBytes;
using Kind = ConnectionEvent::Kind;

struct Datagram {
  FrameBytes bytes;
  wire::ParsedFrame parsed{};
  wire::CmMad mad{};

  wire::Gid source() const { return wire::source_gid(bytes.data(), parsed); }
  wire::Gid destination() const { return wire::destination_gid(bytes.data(), parsed); }
  wire::MacAddress mac(std::size_t at) const {
    wire::MacAddress mac;
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), 6, mac.bytes.begin());
    return mac;
  }
  wire::MacAddress destination_mac() const { return mac(0); }
  wire::MacAddress source_mac() const { return mac(6); }
  template <class M>
  const M& as() const {
    return std::get<M>(mad.message);
  }
};

// The PSN of the first RC request from `source` in the capture, if it sent any.
std::optional<Psn> first_psn_from(const std::filesystem::path& file, const wire::Gid& source) {
  for (const FrameBytes& bytes : golden::read_capture(file)) {
    wire::ParsedFrame parsed;
    // Of masked atomics IBTA knows nothing, but they have a PSN like any request.
    if (wire::parse(bytes, parsed) != wire::Verdict::kOk || parsed.traits().transport != wire::Transport::kRc) continue;
    if (parsed.traits().is_request && wire::source_gid(bytes.data(), parsed) == source) return parsed.psn;
  }
  return std::nullopt;
}

std::vector<Datagram> datagrams_of(const std::filesystem::path& file) {
  std::vector<Datagram> found;
  for (FrameBytes& bytes : golden::read_capture(file)) {
    Datagram d{.bytes = std::move(bytes)};
    if (wire::parse_and_verify(d.bytes, d.parsed) != wire::Verdict::kOk) continue;
    const auto mad = wire::parse_cm(d.bytes.data(), d.parsed);
    if (!mad) continue;
    d.mad = *mad;
    found.push_back(std::move(d));
  }
  return found;
}

class Sink : public port::FrameSink {
 public:
  std::uint8_t* reserve(std::size_t length) override {
    buffer_.resize(length);
    return buffer_.data();
  }
  void commit(std::size_t length) override {
    Datagram d{.bytes = {buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(length)}};
    if (wire::parse_and_verify(d.bytes, d.parsed) != wire::Verdict::kOk) return;  // ARP
    const auto mad = wire::parse_cm(d.bytes.data(), d.parsed);
    ASSERT_TRUE(mad);
    d.mad = *mad;
    datagrams.push_back(std::move(d));
  }
  std::vector<Datagram> datagrams;

 private:
  FrameBytes buffer_;
};

// Our adapter in the place of the one that received or sent a datagram.
struct Host {
  Host(const wire::MacAddress& mac, const wire::Gid& gid, Qpn qpn)
      : adapter([&] {
          AdapterConfig config;
          config.mac = mac;
          config.gids = {gid};
          config.first_qpn = qpn;
          return config;
        }()) {
    auto* const completions = adapter.create_completion_queue(16);
    pair = adapter
               .create_queue_pair(
                   {.pd = adapter.create_domain(), .send_completions = completions, .receive_completions = completions})
               .value();
  }
  ConnectionManager& manager() { return adapter.connections(); }

  // What their message becomes when its partner has our communication id instead of theirs.
  void receive(const Datagram& d, wire::CommId theirs, wire::CommId ours) {
    wire::CmMad mad = d.mad;
    std::visit(
        [&](auto& m) {
          if constexpr (requires { m.remote_comm_id; }) {
            EXPECT_EQ(m.remote_comm_id, theirs);
            m.remote_comm_id = ours;
          }
        },
        mad.message);
    const wire::HeaderTemplate headers({.source_mac = d.source_mac(),
                                        .destination_mac = d.destination_mac(),
                                        .source = d.source(),
                                        .destination = d.destination()});
    FrameBytes frame(wire::cm_frame_size(headers));
    frame.resize(wire::write_cm_frame(frame.data(), headers, d.parsed.psn, mad));
    adapter.on_frame(now, {frame.data(), static_cast<std::uint32_t>(frame.size())});
  }
  void receive(const Datagram& d) { receive(d, {}, {}); }

  // The one message that we have sent since.
  Datagram sent_only() {
    while (adapter.poll_transmit(now, sink_)) {
    }
    EXPECT_EQ(sink_.datagrams.size(), 1u);
    if (sink_.datagrams.empty()) return {};
    Datagram d = std::move(sink_.datagrams.front());
    sink_.datagrams.clear();
    return d;
  }
  ConnectionEvent expect(Kind kind) {
    const auto event = manager().poll_event();
    EXPECT_TRUE(event);
    if (event) {
      EXPECT_EQ(event->kind, kind);
    }
    return event.value_or(ConnectionEvent{});
  }

  Time now = Time::at(Duration::seconds(1));
  Adapter adapter;
  QueuePair* pair = nullptr;

 private:
  Sink sink_;
};

void expect_same_envelope(const Datagram& ours, const Datagram& theirs) {
  EXPECT_EQ(ours.source(), theirs.source());
  EXPECT_EQ(ours.destination(), theirs.destination());
  EXPECT_EQ(ours.source_mac(), theirs.source_mac());
  EXPECT_EQ(ours.destination_mac(), theirs.destination_mac());
  EXPECT_EQ(ours.parsed.opcode, theirs.parsed.opcode);
  EXPECT_EQ(ours.parsed.destination, theirs.parsed.destination);
  EXPECT_EQ(ours.parsed.pkey, theirs.parsed.pkey);
  EXPECT_EQ(ours.parsed.payload_length, theirs.parsed.payload_length);
  const auto deth = [](const Datagram& d) { return wire::get<wire::Deth>(d.bytes.data(), d.parsed); };
  EXPECT_EQ(deth(ours), deth(theirs));
}

ConnectionParameters parameters_of(const wire::CmReq& req) {
  const Duration response = wire::cm_timeout(req.remote_cm_response_timeout);
  return {.psn = req.starting_psn,
          .responder_resources = req.responder_resources,
          .initiator_depth = req.initiator_depth,
          .retry_count = req.retry_count,
          .rnr_retry_count = req.rnr_retry_count,
          .ack_timeout = req.primary.local_ack_timeout,
          .path_mtu = mtu_of_code(req.path_mtu),
          .response_timeout = response,
          .max_retries = req.max_cm_retries};
}

class CmCaptures : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    datagrams = datagrams_of(GetParam());
    ASSERT_GE(datagrams.size(), 3u);
    ASSERT_TRUE(std::holds_alternative<wire::CmReq>(request().mad.message));
    ASSERT_TRUE(std::holds_alternative<wire::CmRep>(reply().mad.message));
    ASSERT_TRUE(std::holds_alternative<wire::CmRtu>(ready().mad.message));
  }
  const Datagram& request() const { return datagrams[0]; }
  const Datagram& reply() const { return datagrams[1]; }
  const Datagram& ready() const { return datagrams[2]; }
  const wire::CmReq& req() const { return request().as<wire::CmReq>(); }
  const wire::CmRep& rep() const { return reply().as<wire::CmRep>(); }
  std::uint16_t port() const { return static_cast<std::uint16_t>(req().service_id.value); }
  // Soft-RoCE makes its GUID from the MAC, as we do; a real NIC has its maker's.
  bool is_soft_roce() const { return GetParam().stem() == "rping_cm"; }
  // The first DREQ and whether the active side sent it.
  const Datagram* disconnect() const {
    const auto found = std::ranges::find_if(
        datagrams, [](const Datagram& d) { return std::holds_alternative<wire::CmDreq>(d.mad.message); });
    return found == datagrams.end() ? nullptr : &*found;
  }
  bool active_disconnects() const { return disconnect()->source() == request().source(); }

  // The queue pair begins where the data in the capture begins, both ways.
  void expect_data_psns(const Host& host, const wire::Gid& us, const wire::Gid& them) const {
    const auto sent = first_psn_from(GetParam(), us);
    const auto received = first_psn_from(GetParam(), them);
    EXPECT_TRUE(sent || received);
    if (sent) {
      EXPECT_EQ(host.pair->attributes().send_psn, sent);
    }
    if (received) {
      EXPECT_EQ(host.pair->attributes().receive_psn, received);
    }
  }

  std::vector<Datagram> datagrams;
};

TEST_P(CmCaptures, OurPassiveSideRepliesAsLinuxDid) {
  Host host(request().destination_mac(), request().destination(), rep().local_qpn);
  ASSERT_TRUE(host.manager().listen(port()));
  host.receive(request());
  const auto event = host.expect(Kind::kRequest);
  EXPECT_EQ(event.port, port());
  EXPECT_EQ(event.remote, request().source());
  EXPECT_EQ(event.remote_qpn, req().local_qpn);
  EXPECT_EQ(event.send_psn, req().starting_psn);
  ASSERT_TRUE(host.manager().accept(host.now, event.id,
                                    {.pair = host.pair,
                                     .psn = rep().starting_psn,
                                     .responder_resources = rep().responder_resources,
                                     .initiator_depth = rep().initiator_depth,
                                     .rnr_retry_count = rep().rnr_retry_count}));

  const Datagram ours = host.sent_only();
  expect_same_envelope(ours, reply());
  EXPECT_EQ(ours.mad.transaction_id, reply().mad.transaction_id);
  wire::CmRep expected = rep();
  expected.local_comm_id = wire::CommId(event.id.value);
  expected.target_ack_delay = ours.as<wire::CmRep>().target_ack_delay;
  if (is_soft_roce()) {
    EXPECT_EQ(ours.as<wire::CmRep>().local_ca_guid, rep().local_ca_guid);
  }
  expected.local_ca_guid = ours.as<wire::CmRep>().local_ca_guid;
  EXPECT_EQ(ours.as<wire::CmRep>(), expected);

  host.receive(ready(), rep().local_comm_id, wire::CommId(event.id.value));
  host.expect(Kind::kEstablished);
  EXPECT_EQ(host.pair->state(), QpState::kReadyToSend);
  EXPECT_EQ(host.pair->attributes().remote_qpn, req().local_qpn);
  expect_data_psns(host, request().destination(), request().source());
  EXPECT_EQ(host.pair->attributes().path_mtu, mtu_of_code(req().path_mtu));
  EXPECT_EQ(host.pair->attributes().timeout, req().primary.local_ack_timeout);
  if (disconnect() == nullptr || !active_disconnects()) return;
  host.receive(*disconnect(), rep().local_comm_id, wire::CommId(event.id.value));
  host.expect(Kind::kDisconnected);
  EXPECT_EQ(host.pair->state(), QpState::kError);
  const Datagram answer = host.sent_only();
  const Datagram& theirs = datagrams.back();
  expect_same_envelope(answer, theirs);
  wire::CmDrep drep = theirs.as<wire::CmDrep>();
  drep.local_comm_id = wire::CommId(event.id.value);
  EXPECT_EQ(answer.as<wire::CmDrep>(), drep);
  EXPECT_EQ(answer.mad.transaction_id, theirs.mad.transaction_id);
}

TEST_P(CmCaptures, OurActiveSideRequestsAsLinuxDid) {
  Host host(request().source_mac(), request().source(), req().local_qpn);
  ConnectionParameters parameters = parameters_of(req());
  parameters.pair = host.pair;
  const auto id = host.manager().connect(host.now, request().destination(), port(), parameters);
  ASSERT_TRUE(id) << id.error().message;
  // It asks for the peer's MAC first; that is the neighbours' business.
  std::array<std::uint8_t, wire::kMadSize> mad{};
  UdDestination to;
  ASSERT_TRUE(host.manager().poll_mad(host.now, to, mad));
  EXPECT_EQ(to.gid, request().destination());
  const auto ours = wire::parse_cm(mad);
  ASSERT_TRUE(ours);
  const auto& sent = std::get<wire::CmReq>(ours->message);

  wire::CmReq expected = req();
  expected.local_comm_id = wire::CommId(id->value);
  expected.primary.flow_label = sent.primary.flow_label;
  expected.primary.packet_rate = 0;  // unknown
  if (is_soft_roce()) {
    EXPECT_EQ(sent.local_ca_guid, req().local_ca_guid);
  }
  expected.local_ca_guid = sent.local_ca_guid;
  const auto header = wire::IpCmHeader::parse(sent.private_data.data());
  auto expected_header = wire::IpCmHeader::parse(expected.private_data.data());
  ASSERT_TRUE(header && expected_header);
  // The one rule that ties label and port: Linux's.
  EXPECT_EQ(sent.primary.flow_label, (header->source_port * 31u + port()) & 0xFFFFF);
  if (req().primary.flow_label != 0) {
    EXPECT_EQ(req().primary.flow_label, (expected_header->source_port * 31u + port()) & 0xFFFFF);
  }
  expected_header->source_port = header->source_port;
  expected_header->write(expected.private_data.data());
  EXPECT_EQ(sent, expected);

  host.receive(reply(), req().local_comm_id, wire::CommId(id->value));
  host.expect(Kind::kEstablished);
  EXPECT_EQ(host.pair->state(), QpState::kReadyToSend);
  EXPECT_EQ(host.pair->attributes().remote_qpn, rep().local_qpn);
  expect_data_psns(host, request().source(), request().destination());
  const Datagram answer = host.sent_only();
  expect_same_envelope(answer, ready());
  wire::CmRtu rtu = ready().as<wire::CmRtu>();
  rtu.local_comm_id = wire::CommId(id->value);
  EXPECT_EQ(answer.as<wire::CmRtu>(), rtu);
  EXPECT_EQ(answer.mad.transaction_id, ours->transaction_id) << "one transaction from REQ to RTU, as theirs is";
  EXPECT_EQ(ready().mad.transaction_id, request().mad.transaction_id);

  if (disconnect() == nullptr || !active_disconnects()) return;
  host.manager().disconnect(host.now, *id);
  const Datagram dreq = host.sent_only();
  expect_same_envelope(dreq, *disconnect());
  wire::CmDreq expected_dreq = disconnect()->as<wire::CmDreq>();
  expected_dreq.local_comm_id = wire::CommId(id->value);
  EXPECT_EQ(dreq.as<wire::CmDreq>(), expected_dreq);
  host.receive(datagrams.back(), req().local_comm_id, wire::CommId(id->value));
  host.expect(Kind::kDisconnected);
}

std::vector<std::filesystem::path> captures_with_cm() {
  auto all = golden::rxe_captures();
  const auto connectx = golden::reference_captures();
  all.insert(all.end(), connectx.begin(), connectx.end());
  std::erase_if(all, [](const auto& file) { return datagrams_of(file).empty(); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Captures, CmCaptures, testing::ValuesIn(captures_with_cm()),
                         [](const auto& tested) { return tested.param.stem().string(); });

TEST(CmCapturesThere, IncludeLinuxOverSoftRoce) {
  EXPECT_TRUE(std::ranges::any_of(captures_with_cm(), [](const auto& file) { return file.stem() == "rping_cm"; }));
}

}  // namespace
}  // namespace sluice::rc
