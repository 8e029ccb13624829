#include "rack/endpoint/message_link.h"

namespace sluice::rack {

MessageLink::MessageLink(nic::Connector& connector, remote::Scheduler& scheduler, std::uint32_t depth)
    : MessageChannel(scheduler),
      connector_(connector),
      completions_(connector.adapter().create_completion_queue(4 * depth)) {
  LinkConfig config;
  config.pair.pd = connector.adapter().create_domain();
  config.pair.send_completions = completions_;
  config.pair.receive_completions = completions_;
  config.pair.send_depth = depth;
  config.pair.receive_depth = depth;
  link_ = std::make_unique<Link>(
      connector_, config,
      Link::Events{.on_up =
                       [this, depth](Time, rc::QueuePair& pair) {
                         client_ = std::make_unique<rc::MessageClientRc>(this->scheduler(), connector_.adapter(), pair,
                                                                         *completions_, depth);
                       },
                   .on_down =
                       [this](Time now, rc::QueuePair&) {
                         client_->poll(now);  // the pair is in ERR: what was under way comes back flushed
                         client_.reset();
                       },
                   .on_made = {}});
}

MessageLink::~MessageLink() {
  link_.reset();
  connector_.adapter().destroy(completions_);
}

void MessageLink::submit(remote::Call& call) {
  if (client_) return client_->submit(call);
  call.result = {remote::Status::kUnreachable, 0};
  call.on_complete(call);
}

std::size_t MessageLink::poll(Time now) {
  const std::size_t done = client_ ? client_->poll(now) : 0;
  if (client_ && client_->failed()) link_->failed(now, "the connection broke");
  link_->poll(now);
  return done;
}

}  // namespace sluice::rack
