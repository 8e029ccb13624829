#include "rack/endpoint/open_end.h"

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
