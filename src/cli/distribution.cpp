#include "cli/distribution.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <thread>

namespace sluice::cli {
namespace {

constexpr std::string_view kDone = "done ";
constexpr std::string_view kFailed = "failed ";
constexpr std::string_view kDo = "do ";
constexpr std::string_view kStop = "stop";
constexpr std::string_view kQuit = "quit";

std::string host_name() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "a machine without a name";
  name.resize(name.find('\0'));
  return name;
}

// The number after the word that a message begins with.
std::size_t number_in(std::string_view text, std::string_view word) {
  return std::stoul(std::string(text.substr(word.size())));
}

// What rank 0 still has to give, who has room for it, and how much has come back.
struct Ledger {
  std::deque<std::size_t> wanted;
  std::size_t all = 0;
  std::size_t done = 0;
  std::deque<int> free;  // ranks, once for each task that they have room for
};

Result<void> take_in(const RankMessage& message, const PointCargo& cargo, Ledger& ledger) {
  const std::string_view text = message.text;
  if (text.starts_with(kFailed)) return fail(std::string(text.substr(kFailed.size())));
  const std::size_t line = text.find('\n');
  ++ledger.done;
  ledger.free.push_back(message.from);
  return cargo.store(number_in(text.substr(0, line), kDone), std::string(text.substr(line + 1)));
}

}  // namespace

Result<std::unique_ptr<Distribution>> Distribution::over_mpi(unsigned jobs) {
  auto ranks = Ranks::start();
  if (!ranks) return tl::unexpected(ranks.error());
  const unsigned share = std::max(1u, std::thread::hardware_concurrency() / static_cast<unsigned>((*ranks)->here()));
  std::vector<unsigned> all;
  for (const std::string& text : (*ranks)->exchange(fmt::format("{}", jobs == 0 ? share : jobs)))
    all.push_back(static_cast<unsigned>(std::stoul(text)));
  return std::unique_ptr<Distribution>(new Distribution(std::move(*ranks), std::move(all)));
}

Distribution::~Distribution() {
  if (leads()) tell_others(kQuit);
}

Result<void> Distribution::agree(const std::string& digest) {
  const std::vector<std::string> digests = ranks_->exchange(digest);
  const std::vector<std::string> hosts = ranks_->exchange(host_name());
  for (std::size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    return fail(fmt::format(
        "rank {} on {} has another sluice, experiment or hardware file than rank 0 on {}; all must have the same", rank,
        hosts[rank], hosts[0]));
  }
  return {};
}

Result<void> Distribution::run(const PointTasks& tasks, const std::deque<std::size_t>& wanted, const PointCargo& cargo,
                               const std::function<void(std::size_t, std::size_t)>& progress) {
  const Interrupts interrupts;
  PointProcesses children(tasks);
  if (!leads()) return work(children, cargo);
  auto ran = hand_out(children, wanted, cargo, progress);
  if (ran) tell_others(kStop);
  return ran;
}

Result<void> Distribution::hand_out(PointProcesses& children, std::deque<std::size_t> wanted, const PointCargo& cargo,
                                    const std::function<void(std::size_t, std::size_t)>& progress) {
  Ledger ledger;
  ledger.wanted = std::move(wanted);
  ledger.all = ledger.wanted.size();
  // Each rank's first before any one's second.
  for (unsigned job = 0; job < *std::ranges::max_element(jobs_); ++job) {
    for (std::size_t rank = 0; rank < jobs_.size(); ++rank) {
      if (job < jobs_[rank]) ledger.free.push_back(static_cast<int>(rank));
    }
  }
  while (ledger.done < ledger.all) {
    if (Interrupts::come()) return Interrupts::told();
    while (const auto message = ranks_->receive()) {
      if (auto taken = take_in(*message, cargo, ledger); !taken) return taken;
    }
    for (; !ledger.free.empty() && !ledger.wanted.empty(); ledger.free.pop_front(), ledger.wanted.pop_front()) {
      const std::size_t task = ledger.wanted.front();
      if (const int to = ledger.free.front(); to != 0) {
        ranks_->send(to, fmt::format("{}{}", kDo, task));
      } else if (auto begun = children.start(task); !begun) {
        return begun;
      }
    }
    const auto ended = children.wait_briefly();
    if (!ended) return tl::unexpected(ended.error());
    if (*ended) {
      ++ledger.done;
      ledger.free.push_back(0);
    }
    progress(ledger.done, ledger.all);
  }
  return {};
}

void Distribution::tell_others(std::string_view word) {
  for (int rank = 1; rank < ranks_->size(); ++rank) ranks_->send(rank, std::string(word));
}

Result<void> Distribution::work(PointProcesses& children, const PointCargo& cargo) {
  bool told = false;
  const auto fail_to_leader = [&](const Error& error) { ranks_->send(0, std::string(kFailed) + error.message); };
  for (;;) {
    if (Interrupts::come() && !told) {
      told = true;
      fail_to_leader(Interrupts::told().value());
    }
    while (const auto message = ranks_->receive()) {
      if (message->text == kStop) return {};
      if (message->text == kQuit) return fail("rank 0 has given up");
      if (auto begun = children.start(number_in(message->text, kDo)); !begun) fail_to_leader(begun.error());
    }
    const auto ended = children.wait_briefly();
    if (!ended) {
      fail_to_leader(ended.error());
    } else if (*ended) {
      const auto text = cargo.load(**ended);
      if (!text) fail_to_leader(text.error());
      if (text) ranks_->send(0, fmt::format("{}{}\n{}", kDone, **ended, *text));
    }
  }
}

}  // namespace sluice::cli
