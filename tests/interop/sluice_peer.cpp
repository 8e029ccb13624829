// Our side: an endpoint over Sluice's NIC, real RoCEv2 frames on a real interface.
//
//   sluice_peer TCP_PORT PORT IPV4_ADDRESS        PORT as in ports/open.h: packet:nic0, packet:nic0,impair(drop=5%,seed=1)

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "nic/nic.h"
#include "nic/poll_loop.h"
#include "peer.h"
#include "ports/open.h"
#include "rc/adapter.h"
#include "rc/connection_manager.h"

namespace sluice::interop {
namespace {

// REQUIRES nothing: says why not, as a PeerError.
template <class T>
T value_of(Result<T> result) {
  if (!result) throw PeerError(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

rc::SendOp op_of(Op op) {
  switch (op) {
    case Op::kSend: return rc::SendOp::kSend;
    case Op::kSendWithImmediate: return rc::SendOp::kSendWithImmediate;
    case Op::kWrite: return rc::SendOp::kWrite;
    case Op::kWriteWithImmediate: return rc::SendOp::kWriteWithImmediate;
    case Op::kRead: return rc::SendOp::kRead;
    case Op::kCompareAndSwap: return rc::SendOp::kCompareAndSwap;
    case Op::kFetchAndAdd: return rc::SendOp::kFetchAndAdd;
  }
  throw PeerError("no such operation");
}

memory::Access rights(const Arguments& a, const char* name) {
  return {static_cast<std::uint32_t>(a.number(name, memory::kAllAccess.bits))};
}

rc::AdapterConfig configuration(wire::Gid gid) {
  rc::AdapterConfig config;
  config.mac = {{0x02, 0, 0, 0x4D, 0, 0x20}};
  config.gids = {gid};
  return config;
}

class NicEndpoint final : public Endpoint {
 public:
  NicEndpoint(std::unique_ptr<port::Port> port, wire::Gid gid)
      : shard_(configuration(gid), std::move(port)),
        adapter_(shard_.adapter()),
        gid_(gid),
        domain_(adapter_.create_domain()) {
    shard_.attach(loop_);
  }

  ~NicEndpoint() override { close(); }

  std::string open(const Arguments& a) override {
    prepare(a);
    value_of(adapter_.modify(loop_.now(), *pair_, {.state = rc::QpState::kInit, .access = rights(a, "pair_access")}));
    psn_ = rc::Psn(static_cast<std::uint32_t>(a.number("psn", 0)));
    return "qpn=" + std::to_string(pair_->qpn().value) + " psn=" + std::to_string(psn_.value()) +
           " gid=::ffff:" + gid_.v4().to_string() + " " + region_facts();
  }

  void connect(const Arguments& a) override {
    const auto small = [&](const char* name, std::uint64_t otherwise) {
      return static_cast<std::uint8_t>(a.number(name, otherwise));
    };
    value_of(adapter_.modify(loop_.now(), *pair_,
                             {.state = rc::QpState::kReadyToReceive,
                              .remote_gid = value_of(wire::Gid::parse(a.text("gid"))),
                              .remote_qpn = rc::Qpn(static_cast<std::uint32_t>(a.number("qpn"))),
                              .path_mtu = static_cast<std::uint32_t>(a.number("mtu")),
                              .receive_psn = rc::Psn(static_cast<std::uint32_t>(a.number("psn"))),
                              .min_rnr_timer = small("min_rnr", 12),
                              .max_reads_in = std::uint8_t{16}}));
    value_of(adapter_.modify(loop_.now(), *pair_,
                             {.state = rc::QpState::kReadyToSend,
                              .send_psn = psn_,
                              .timeout = small("timeout", 14),
                              .retry_count = small("retry", 7),
                              .rnr_retry_count = small("rnr_retry", 7),
                              .max_reads_out = std::uint8_t{16}}));
  }

  void post(const Work& work) override {
    const rc::Sge sge = piece(work.offset, work.length);
    rc::SendRequest request{.id = work.id, .op = op_of(work.op), .sges = {&sge, 1}};
    request.immediate = work.immediate;
    request.remote_address = work.remote;
    request.remote_key = memory::Key(work.rkey);
    request.compare = work.compare;
    request.swap_or_add = work.value;
    if (const auto error = adapter_.post_send(loop_.now(), *pair_, request); error != rc::PostError::kNone) {
      throw PeerError(std::string("post_send: ") + std::string(to_string(error)));
    }
  }

  void post_receive(std::uint64_t id, std::uint64_t offset, std::uint32_t length) override {
    const rc::Sge sge = piece(offset, length);
    if (const auto error = adapter_.post_receive(*pair_, {.id = id, .sges = {&sge, 1}});
        error != rc::PostError::kNone) {
      throw PeerError(std::string("post_receive: ") + std::string(to_string(error)));
    }
  }

  std::optional<Done> poll() override {
    rc::Completion completion;
    if (completions_ == nullptr || completions_->poll({&completion, 1}) == 0) return std::nullopt;
    Done done{.id = completion.id, .status = static_cast<int>(completion.status)};
    if (completion.status == rc::CompletionStatus::kSuccess) {
      done.received = completion.kind == rc::CompletionKind::kReceive ||
                      completion.kind == rc::CompletionKind::kReceiveWithImmediate;
      done.length = completion.length;
      if (completion.has_immediate) done.immediate = completion.immediate;
    }
    return done;
  }

  std::span<std::uint8_t> memory() override { return buffer_; }

  int turn() override { return loop_.turn() > 0 ? 0 : 1; }

  void cm_listen(std::uint16_t service) override { value_of(connections().listen(service)); }

  std::string cm_connect(const Arguments& a) override {
    const Patience patience(a);
    prepare(a);
    const auto to = wire::Gid::from(value_of(wire::Ipv4Address::parse(a.text("to"))));
    connection_ = value_of(
        connections().connect(loop_.now(), to, static_cast<std::uint16_t>(a.number("service")), parameters(a)));
    return region_facts() + " data=" + std::to_string(number_in(expect(Kind::kEstablished, patience).private_data));
  }

  std::string cm_accept(const Arguments& a) override {
    const Patience patience(a);
    prepare(a);
    const auto request = expect(Kind::kRequest, patience);
    connection_ = request.id;
    value_of(connections().accept(loop_.now(), connection_, parameters(a)));
    expect(Kind::kEstablished, patience);
    return region_facts() + " data=" + std::to_string(number_in(request.private_data));
  }

  void cm_reject(const Arguments& a) override {
    const auto request = expect(Kind::kRequest, Patience(a));
    connections().reject(loop_.now(), request.id, bytes_of(a.number("data")));
  }

  void cm_disconnect() override { connections().disconnect(loop_.now(), connection_); }

  void cm_wait_until_disconnected(const Arguments& a) override { expect(Kind::kDisconnected, Patience(a)); }

 private:
  using Kind = rc::ConnectionEvent::Kind;

  rc::ConnectionManager& connections() { return adapter_.connections(); }

  // Region, completion queue and queue pair anew.
  void prepare(const Arguments& a) {
    close();
    buffer_.assign(a.number("size"), 0);
    const auto depth = static_cast<std::uint32_t>(a.number("depth", 128));
    const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
    key_ = value_of(
        adapter_.regions().add({.pd = domain_, .bytes = buffer_, .address = address, .access = rights(a, "access")}));
    completions_ = adapter_.create_completion_queue(2 * depth);
    pair_ = value_of(adapter_.create_queue_pair({.pd = domain_,
                                                 .send_completions = completions_,
                                                 .receive_completions = completions_,
                                                 .send_depth = depth,
                                                 .receive_depth = depth,
                                                 .signal_all = true}));
  }

  std::string region_facts() const {
    return "rkey=" + std::to_string(key_.value) +
           " address=" + std::to_string(reinterpret_cast<std::uintptr_t>(buffer_.data()));
  }

  rc::ConnectionParameters parameters(const Arguments& a) const {
    rc::ConnectionParameters result;
    result.pair = pair_;
    result.private_data = bytes_of(a.number("data"));
    return result;
  }

  static std::vector<std::uint8_t> bytes_of(std::uint64_t number) {
    std::vector<std::uint8_t> bytes(sizeof number);
    store_le(bytes.data(), number);
    return bytes;
  }
  static std::uint64_t number_in(ByteView bytes) {
    return bytes.size() < sizeof(std::uint64_t) ? 0 : load_le<std::uint64_t>(bytes.data());
  }

  // The next event, which must be of this kind.
  rc::ConnectionEvent expect(Kind kind, const Patience& patience) {
    while (true) {
      loop_.turn();
      if (const auto event = connections().poll_event()) {
        if (event->kind == Kind::kRejected) {
          throw PeerError("rejected reason=" + std::to_string(static_cast<unsigned>(event->reject_reason)) +
                          " data=" + std::to_string(number_in(event->private_data)));
        }
        if (event->kind == Kind::kDisconnected) connection_ = {};
        if (event->kind == kind) return *event;
        throw PeerError("event " + std::to_string(static_cast<int>(event->kind)) + " instead of " +
                        std::to_string(static_cast<int>(kind)));
      }
      if (patience.over()) throw PeerError("no event " + std::to_string(static_cast<int>(kind)) + " in the time given");
    }
  }

  rc::Sge piece(std::uint64_t offset, std::uint32_t length) const {
    return {reinterpret_cast<std::uintptr_t>(buffer_.data()) + offset, length, key_};
  }

  void close() {
    if (connection_ != rc::ConnectionId{}) connections().release(loop_.now(), connection_);
    connection_ = {};
    if (pair_ != nullptr) adapter_.destroy(pair_);
    if (completions_ != nullptr) adapter_.destroy(completions_);
    if (key_ != memory::kReservedKey) adapter_.regions().remove(key_);
    pair_ = nullptr;
    completions_ = nullptr;
    key_ = memory::kReservedKey;
  }

  nic::PollLoop loop_;
  nic::Shard shard_;
  rc::Adapter& adapter_;
  wire::Gid gid_;
  memory::PdId domain_;
  std::vector<std::uint8_t> buffer_;
  memory::Key key_ = memory::kReservedKey;
  rc::CompletionQueue* completions_ = nullptr;
  rc::QueuePair* pair_ = nullptr;
  rc::Psn psn_;
  rc::ConnectionId connection_{};
};

}  // namespace
}  // namespace sluice::interop

int main(int argc, char** argv) {
  using namespace sluice;
  if (argc != 4) {
    std::fprintf(stderr, "usage: sluice_peer TCP_PORT PORT IPV4_ADDRESS\n");
    return 2;
  }
  try {
    const auto address = interop::value_of(wire::Ipv4Address::parse(argv[3]));
    interop::NicEndpoint endpoint(interop::value_of(ports::open_port(argv[2])), wire::Gid::from(address));
    return interop::serve(endpoint, static_cast<std::uint16_t>(std::atoi(argv[1])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice_peer: %s\n", error.what());
    return 1;
  }
}
