// Message link: a MessageChannel to one node over a connection that is kept up. While there is none, calls end as kUnreachable.
//
// Threads:  the loop's owner.
#pragma once

#include <memory>

#include "nic/connector.h"
#include "rack/endpoint/link.h"
#include "rc/remote_rc.h"

namespace sluice::rack {

class MessageLink final : public remote::MessageChannel, public nic::Pollable {
 public:
  MessageLink(nic::Connector& connector, remote::Scheduler& scheduler, std::uint32_t depth = 16);
  ~MessageLink() override;

  void want(Time now, std::optional<Link::Peer> peer) { link_->want(now, peer); }
  bool up() const { return link_->up(); }
  const std::string& why() const { return link_->why(); }

  void submit(remote::Call& call) override;
  std::size_t poll(Time now) override;
  Time next_deadline() const override { return link_->next_deadline(); }

 private:
  nic::Connector& connector_;
  rc::CompletionQueue* completions_;
  std::unique_ptr<rc::MessageClientRc> client_;  // while up
  std::unique_ptr<Link> link_;
};

}  // namespace sluice::rack
