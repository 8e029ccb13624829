#include "rack/endpoint/open_end.h"

#include <fmt/core.h>

#include "ports/open.h"

namespace sluice::rack {

Result<std::unique_ptr<port::Port>> open_end(const std::string& spec, bool listen, nic::PollLoop& loop,
                                             const std::function<void()>& listening,
                                             std::unique_ptr<port::Listener>& listener) {
  if (!listen) {
    auto port = ports::open_port(spec, ports::Absent::kWait);
    if (port) listening();
    return port;
  }
  if (const auto parsed = ports::parse_port_spec(spec); parsed && parsed->kind == "udp") {
    const auto local = ports::parse_host_port(parsed->address);
    if (local && local->port == 0)  // one that is free would be found by nobody
      return fail(fmt::format("listener \"{}\": port 0 is nobody's; name one", spec));
  }
  auto opened = ports::open_listener(spec);
  if (!opened) return tl::unexpected(opened.error());
  listener = std::move(*opened);
  listening();
  std::unique_ptr<port::Port> port;
  nic::Periodic look(Duration::milliseconds(1), [&](Time now) { port = listener->accept(now); });
  loop.add(look);
  loop.run_until([&] { return port != nullptr; });
  loop.remove(look);
  if (!port) return fail("stopped");
  return port;
}

}  // namespace sluice::rack
