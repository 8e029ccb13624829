// SlotStock: the slots that a client has been granted and not used, by volume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "clover/layout.h"

namespace sluice::clover {

class SlotStock {
 public:
  std::size_t size() const { return size_; }
  std::size_t size_of(std::uint32_t volume) const { return volume < volumes_.size() ? volumes_[volume].size() : 0; }

  void add(NodePointer slot) {
    of(slot).push_back(slot);
    ++size_;
  }
  // The next one to be taken.
  void put_back(NodePointer slot) {
    of(slot).push_front(slot);
    ++size_;
  }

  // Of `volume`, or if there is none, of the volume that has most. False: there are none at all.
  bool take(std::uint32_t volume, NodePointer& out) {
    if (size_ == 0) return false;
    if (size_of(volume) == 0) {
      volume = 0;
      for (std::uint32_t v = 1; v < volumes_.size(); ++v) {
        if (volumes_[v].size() > volumes_[volume].size()) volume = v;
      }
    }
    out = volumes_[volume].front();
    volumes_[volume].pop_front();
    --size_;
    return true;
  }
  // All of the volume but `keep`.
  void take_rest(std::uint32_t volume, std::size_t keep, std::vector<NodePointer>& out) {
    for (; size_of(volume) > keep; --size_) {
      out.push_back(volumes_[volume].back());
      volumes_[volume].pop_back();
    }
  }
  std::vector<NodePointer> take_all() {
    std::vector<NodePointer> all;
    for (auto& volume : volumes_) {
      all.insert(all.end(), volume.begin(), volume.end());
      volume.clear();
    }
    size_ = 0;
    return all;
  }

 private:
  std::deque<NodePointer>& of(NodePointer slot) {
    if (slot.volume() >= volumes_.size()) volumes_.resize(slot.volume() + std::size_t{1});
    return volumes_[slot.volume()];
  }

  std::vector<std::deque<NodePointer>> volumes_;
  std::size_t size_ = 0;
};

}  // namespace sluice::clover
