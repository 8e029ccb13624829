// Every way for a packet to leave the box, and every event worth a number: one table each.
//
// Invariant:  each packet gets one Verdict, once; a packet that was held gets kHeld... when it comes and another when it is let go.
// Source:     docs/design/swordbox.md: a counter for every verdict.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "swordbox/verdict_table.h"

namespace sluice::swordbox {

// What becomes of the packet.
enum class Action : std::uint8_t { kForward, kDrop, kHold };

enum class Verdict : std::uint8_t {
#define X(name, action, meaning) k##name,
  SLUICE_BOX_VERDICTS(X)
#undef X
};

inline constexpr std::size_t kVerdicts = 0
#define X(name, action, meaning) +1
    SLUICE_BOX_VERDICTS(X)
#undef X
    ;

struct VerdictRow {
  std::string_view name;
  Action action;
  std::string_view meaning;
};

inline constexpr std::array<VerdictRow, kVerdicts> kVerdictTable = {{
#define X(name, action, meaning) {#name, Action::action, meaning},
    SLUICE_BOX_VERDICTS(X)
#undef X
}};

constexpr const VerdictRow& row(Verdict verdict) { return kVerdictTable[static_cast<std::size_t>(verdict)]; }
inline constexpr std::array<Action, kVerdicts> kActions = {{
#define X(name, action, meaning) Action::action,
    SLUICE_BOX_VERDICTS(X)
#undef X
}};
constexpr Action action_of(Verdict verdict) { return kActions[static_cast<std::size_t>(verdict)]; }
// Whether the packet leaves otherwise than it came.
constexpr bool changes_packet(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRepeatedSteered:
    case Verdict::kCasReaimed:
    case Verdict::kCasSteered:
    case Verdict::kCasProbe:
    case Verdict::kAtomicReplaced:
    case Verdict::kWriteMoved:
    case Verdict::kRepeatedRenumbered:
    case Verdict::kReadSteered: return true;
    default: return false;
  }
}

struct Counters {
  std::array<std::uint64_t, kVerdicts> verdicts{};
#define X(name, meaning) std::uint64_t name = 0;
  SLUICE_BOX_EVENTS(X)
#undef X

  void count(Verdict verdict) { ++verdicts[static_cast<std::size_t>(verdict)]; }
  std::uint64_t of(Verdict verdict) const { return verdicts[static_cast<std::size_t>(verdict)]; }

  // f(name, meaning, value) for each.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < kVerdicts; ++i) f(kVerdictTable[i].name, kVerdictTable[i].meaning, verdicts[i]);
#define X(name, meaning) f(std::string_view(#name), std::string_view(meaning), name);
    SLUICE_BOX_EVENTS(X)
#undef X
  }
};

}  // namespace sluice::swordbox
