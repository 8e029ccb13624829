#include "sim/world/hardware.h"

#include "sim/world/fields.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kAnyCount = std::uint64_t{1} << 40;
constexpr std::uint64_t kLeastMbps = 1;                   // slower ones would take packets past the end of time
constexpr std::uint64_t kMostMarked = 2'000'000'000'000;  // that DCQCN's arithmetic has room for
constexpr std::uint64_t kMostPercent = 1'000;  // ten times as slow on busy cores, and that ten times on shared ones

void read_nic(Fields& f, NicParameters& nic) {
  f.duration("packet_interval", nic.packet_interval);
  f.duration("requester_qp_interval", nic.requester_qp_interval);
  f.duration("responder_qp_interval", nic.responder_qp_interval);
  f.duration("responder_qp_interval_device", nic.responder_qp_interval_device);
  f.duration("transmit_latency", nic.transmit_latency);
  f.duration("receive_latency", nic.receive_latency);
  f.duration("completion_latency", nic.completion_latency);
  f.duration("doorbell_latency", nic.doorbell_latency);
  f.duration("fetch_latency", nic.fetch_latency);
  f.integer("work_requests_kept", nic.work_requests_kept, 1, kAnyCount);
  f.integer("work_requests_lost", nic.work_requests_lost, nic.work_requests_kept + 1, kAnyCount);
  f.byte_count("inline_bytes", nic.inline_bytes);
  f.duration("read_latency", nic.read_latency);
  f.duration("read_latency_device", nic.read_latency_device);
  f.duration("read_interval", nic.read_interval);
  f.integer("reads_in_flight", nic.reads_in_flight, 1, 255);
  f.duration("atomic_latency", nic.atomic_latency);
  f.duration("atomic_latency_device", nic.atomic_latency_device);
  f.duration("atomic_address_interval", nic.atomic_address_interval);
  f.duration("atomic_address_interval_device", nic.atomic_address_interval_device);
  f.duration("atomic_qp_interval", nic.atomic_qp_interval);
  f.duration("atomic_interval", nic.atomic_interval);
  f.duration("memory_jitter", nic.memory_jitter);
  f.duration("stall_interval", nic.stall_interval);
  f.duration("stall_step", nic.stall_step);
}

void read_switch(Fields& f, SwitchParameters& s) {
  f.duration("pipeline_latency", s.pipeline_latency);
  f.byte_count("queue_bytes", s.queue_bytes);
  f.byte_count("ecn_from_bytes", s.ecn_from_bytes);
  f.byte_count("ecn_to_bytes", s.ecn_to_bytes, s.ecn_from_bytes, kAnyCount);
  f.integer("ecn_most_per_million", s.ecn_most_per_million, 0, 1'000'000);
  f.byte_count("pause_from_bytes", s.pause_from_bytes);
  f.byte_count("pause_to_bytes", s.pause_to_bytes, 0, s.pause_from_bytes == 0 ? kAnyCount : s.pause_from_bytes);
}

void read_host(Fields& f, HostParameters& host) {
  f.integer("cores", host.cores, 1, 4096);
  f.integer("threads_per_core", host.threads_per_core, 1, 2);
  f.duration("time_slice", host.time_slice, Duration::microseconds(1), Fields::kLongest);
  f.integer("poll_batch", host.poll_batch, 1, HostParameters::kMostPolled);
  f.cost("poll_cost", host.poll_cost);
  f.cost("completion_cost", host.completion_cost);
  f.cost("post_cost", host.post_cost);
  f.cost("doorbell_cost", host.doorbell_cost);
  f.integer("all_cores_percent", host.all_cores_percent, 100, kMostPercent);
  f.integer("shared_core_percent", host.shared_core_percent, 100, kMostPercent);
}

}  // namespace

Result<Hardware> parse_hardware(std::string text, const std::string& path) {
  const auto parsed = parse_toml(text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  Hardware hardware;
  std::string error;
  Fields top(*parsed, path, "", error);
  top.text("name", hardware.name);
  const auto section = [&](const char* name, auto read, auto& out) {
    const toml::node* const node = top.node(name);
    if (node == nullptr) return;
    if (!node->is_table()) return top.fail(*node, name, "must be a table");
    Fields fields(*node->as_table(), path, name, error, Fields::Sources::kRequired);
    read(fields, out);
    fields.finish();
  };
  section("nic", read_nic, hardware.nic);
  section(
      "link",
      [](Fields& f, LinkParameters& link) {
        f.rate("bits_per_second", link.bits_per_second, kLeastMbps);
        f.duration("delay", link.delay);
      },
      hardware.link);
  section("switch", read_switch, hardware.net_switch);
  section("host", read_host, hardware.host);
  if (error.empty() && hardware.net_switch.ecn_from_bytes != 0 && hardware.link.bits_per_second > kMostMarked)
    top.fail(*top.node("link"), "link", "must be of 2000 Gb/s at most where the switch marks (ecn_from_bytes)");
  if (!top.finish()) return fail(error);
  hardware.text = std::move(text);
  return hardware;
}

Result<Hardware> load_hardware(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  return parse_hardware(std::move(*text), path);
}

}  // namespace sluice::sim
